//! The date that a template may print.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

/// A clock that the caller sets, so that nothing here reads the time itself.
#[derive(Clone, Default)]
pub struct Clock {
    /// Seconds since the epoch, already shifted to local time.
    local: Arc<AtomicI64>,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

impl Clock {
    /// Sets the time: seconds since the epoch, and the local zone's offset.
    pub fn set(&self, unix: i64, offset: i32) {
        self.local
            .store(unix.saturating_add(offset.into()), Ordering::Relaxed);
    }

    /// The time as Python's `datetime.now().strftime` writes it in the C locale.
    /// None for a directive that is not known here.
    pub fn strftime(&self, format: &str) -> Option<String> {
        let t = self.local.load(Ordering::Relaxed);
        let (days, second) = (t.div_euclid(86_400), t.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let weekday = (days + 4).rem_euclid(7) as usize;
        let month_name = MONTHS[month as usize - 1];
        let hour12 = (hour + 11) % 12 + 1;
        let half = if hour < 12 { "AM" } else { "PM" };

        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next()?;
            let unpadded = directive == '-';
            if unpadded {
                directive = chars.next()?;
            }
            let (n, width) = match directive {
                'Y' => (year, 4),
                'm' => (month, 2),
                'd' => (day, 2),
                'H' => (hour, 2),
                'I' => (hour12, 2),
                'M' => (minute, 2),
                'S' => (second, 2),
                'y' => (year.rem_euclid(100), 2),
                'j' => (days - days_before(year) + 1, 3),
                'w' => (weekday as i64, 1),
                _ => {
                    match directive {
                        'B' => out.push_str(month_name),
                        'b' | 'h' => out.push_str(&month_name[..3]),
                        'A' => out.push_str(DAYS[weekday]),
                        'a' => out.push_str(&DAYS[weekday][..3]),
                        'p' => out.push_str(half),
                        'e' => out.push_str(&format!("{day:2}")),
                        'F' => out.push_str(&format!("{year:04}-{month:02}-{day:02}")),
                        'T' => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
                        'R' => out.push_str(&format!("{hour:02}:{minute:02}")),
                        '%' => out.push('%'),
                        _ => return None,
                    }
                    continue;
                }
            };
            let width = if unpadded { 1 } else { width };
            out.push_str(&format!("{n:0width$}"));
        }
        Some(out)
    }
}

/// Days from the epoch to the first of January of `year`.
fn days_before(year: i64) -> i64 {
    let y = year - 1;
    y * 365 + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) - 719_162
}

fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Year, month and day of a day counted from the epoch, in the Gregorian
/// calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    let mut year = 1970 + days.div_euclid(366);
    while days_before(year + 1) <= days {
        year += 1;
    }
    let mut rest = days - days_before(year);
    let lengths = [
        31,
        28 + i64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 1;
    for length in lengths {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_strftime_writes_them() {
        let clock = Clock::default();
        let f = |unix, offset, format: &str| {
            clock.set(unix, offset);
            clock.strftime(format)
        };
        assert_eq!(
            f(0, 0, "%Y-%m-%d %H:%M:%S %a %A %j").unwrap(),
            "1970-01-01 00:00:00 Thu Thursday 001"
        );
        assert_eq!(
            f(1_709_164_799, 0, "%d %b %Y|%e|%-d|%B|%y|%p|%I").unwrap(),
            "28 Feb 2024|28|28|February|24|PM|11"
        );
        assert_eq!(
            f(1_709_164_799, 1, "%F %T %j").unwrap(),
            "2024-02-29 00:00:00 060"
        );
        assert_eq!(
            f(1_735_689_599, 0, "%F %j %R %-m %w %%").unwrap(),
            "2024-12-31 366 23:59 12 2 %"
        );
        assert_eq!(f(951_782_400, -3600, "%F").unwrap(), "2000-02-28");
        assert_eq!(f(-1, 0, "%F %I%p").unwrap(), "1969-12-31 11PM");
        assert_eq!(f(4_102_444_800, 0, "%-d/%-m").unwrap(), "1/1");
        assert_eq!(f(0, 0, "%Q"), None);
        assert_eq!(f(0, 0, "%"), None);
    }
}
