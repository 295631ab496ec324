package classify

import (
	"maps"
	"testing"
)

// TestBuiltins gives each detector texts that it must and must not take for its
// own. Card numbers are those that payment services publish for tests; others
// are made.
func TestBuiltins(t *testing.T) {
	c := mustNew(t, each())
	f := func(detector, text string, want int64) {
		t.Helper()
		if got := scanText(c, text).Findings[detector]; got != want {
			t.Errorf("%s: %q has %d, want %d", detector, text, got, want)
		}
	}
	card := func(text string, want int64) { t.Helper(); f(PaymentCard, text, want) }
	card("4111.1111.1111.1111", 1)
	card("4111 - 1111 - 1111 - 1111", 1)
	card("4111 1111 1111 1111 5555 5555 5555 4444", 2)
	card("1234 4111 1111 1111 1111", 0) // a longer number
	card("4111 1111 1111 1112", 0)
	card("4111111111111111", 1)
	card("pay with 4111-1111-1111-1111, please", 1)
	card("4111.1111.1111.1111", 1)
	card("4111 - 1111 - 1111 - 1111", 1)
	card("4111 1111 1111 1111 5555 5555 5555 4444", 2)
	card("1234 4111 1111 1111 1111", 0) // a longer number
	card("4111\n1111\n1111\n1111", 1)
	card("4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", 1)
	card("378282246310005", 1)
	card("3782 822463 10005", 1)
	card("30569309025904", 1)
	card("6011111111111117", 1)
	card("3530111333300000", 1)
	card("5555555555554444 and 2223003122003222", 2)
	card("qty 2 4111 1111 1111 1111 exp 12/27", 1)
	card("4111111111111111,123", 1)
	card("123,4111111111111111", 1)
	card("卡号4111111111111111。", 1)
	card("４１１１ １１１１ １１１１ １１１１", 1)
	card("4111\u200b1111\u200b1111\u200b1111", 1)
	card("4111\u00a01111\u00a01111\u00a01111", 1)
	card("4111\u20111111\u20111111\u20111111", 1)
	card("٤١١١ ١١١١ ١١١١ ١١١١", 1)
	card("4111/1111/1111/1111", 1)
	card("4111-1111 1111-1111", 1)
	card("4111\t1111\t1111\t1111", 1) // a pasted table
	card("name\t4111\t1111\t1111\t1111\t12/27", 1)
	card("4111,1111,1111,1111", 1)
	card("4111, 1111, 1111, 1111.", 0) // a list of numbers
	card("my card is 4111, 1111, 1111, 1111.", 1)
	card("4111_1111_1111_1111", 1)
	card("3782\t822463\t10005", 1)
	card("4111\t1111\t1111\t1112", 0)
	card("4111\t1111,1111\t1111", 0)
	card("1234\t4111\t1111\t1111\t1111", 0) // a row of numbers
	card("4111\t1111\t1111\t1111\t1234", 0)
	card("1234, 4111, 1111, 1111, 1111", 0)
	card("4111,1111,1111,1111,12345", 1)
	card("4111_1111_1111_1111_1", 0) // a name
	card("id_4111_1111_1111_1111", 0)
	card("x4111_1111_1111_1111", 0)
	card("4111_1111_1111_1111x", 0)
	card("0.4111,1111,1111,1111", 0)
	card("4222222222222", 0) // too many article numbers look like this
	card("visa: 4222222222222", 1)
	card("4222222222222 is my card", 1)
	card("0.4111111111111111", 0)
	card("x4111111111111111", 0)
	card("4111111111111111x", 0)
	card("41111111111111110000000", 0)
	card("411111111111111", 0)
	card("0000000000000000", 0)
	card("1234567812345670", 0) // Luhn holds, no issuer
	card("4111-1111-1111-1111-a2b3", 0)
	card("41 11 11 11 11 11 11 11", 0)

	card(`code: "\n4111111111111111\n"`, 1) // an escaped line break
	card(`C:\\x4111111111111111`, 0)

	iban := func(text string, want int64) { t.Helper(); f(IBAN, text, want) }
	iban("GB82 WEST 1234 5698 7654 32", 1)
	iban("GB82 WEST 1234 5698 7654 33", 0)
	iban("GB82WEST12345698765432", 1)
	iban("gb82west12345698765432", 1)
	iban("IBAN:DE89370400440532013000.", 1)
	iban("DE89 3704 0044 0532 0130 00, FR14 2004 1010 0505 0001 3M02 606", 2)
	iban("GB82-WEST-1234-5698-7654-32", 1)
	iban("DE89 3704 0044 0532 0130 001", 0)
	iban(`"\tDE89370400440532013000"`, 1)
	iban("xDE89370400440532013000", 0)
	iban("DE89 37040044 0532013000", 0)
	iban("ZZ89370400440532013000", 0)
	iban("NO9386011117947", 1)
	iban("MT84MALT011000012345MTLCAST001S", 1)

	ssn := func(text string, want int64) { t.Helper(); f(USSSN, text, want) }
	ssn("219-09-9999", 1)
	ssn("219 09 9999", 1)
	ssn("SSN: 219099999", 1)
	ssn("219099999 is my social security number", 1)
	ssn("219099999", 0)
	ssn("lessness 219099999", 0)
	ssn("000-12-3456", 0)
	ssn("666-12-3456", 0)
	ssn("900-12-3456", 0)
	ssn("219-00-9999", 0)
	ssn("219-09-0000", 0)
	ssn("219-09 9999", 0)
	ssn("1219-09-9999", 0)
	ssn("219-09-99991", 0)
	ssn("219-09-9999-1", 0)
	ssn("A219-09-9999", 0)

	mail := func(text string, want int64) { t.Helper(); f(Email, text, want) }
	mail("ann.lee+x@example.co.uk", 1)
	mail("<ann@example.com>, 'bob@example.org'", 2)
	mail("邮箱是bob@example.com谢谢", 1)
	mail("ann＠example.com", 1)
	mail("mailto:ann@example.com", 1)
	mail("\"bob smith\"@example.com", 1)
	mail("to: \"o'hara, ann\"@example.co.uk;", 1)
	mail("<\"a\\\"b\"@example.com>", 1)
	mail("\"\"@example.com", 0)
	mail("x\"bob\"@example.com", 0)
	mail("\"bob\nsmith\"@example.com", 0)
	mail("\"pkg\"@1.2.3", 0)
	mail("ann@example", 0)
	mail("@example.com", 0)
	mail("ann@@example.com", 0)
	mail("a..b@example.com.", 0)
	mail("ann.@example.com", 0)
	mail("logo@2x.png", 0)
	mail("left-pad@1.2.3", 0)
	mail("git@example.com:group/name.git", 0)
	mail("https://user:word@example.com/x", 0)
	mail("this@Activity.finish()", 0)
	mail("ann@-example.com", 0)

	phone := func(text string, want int64) { t.Helper(); f(Phone, text, want) }
	phone("+49 30 901820", 1)
	phone("+1 212 555 0134", 1)
	phone("+12125550134", 1)
	phone("+(44) 20 7946 0958", 1)
	phone("0049 30 901820", 1)
	phone("(212) 555-0134", 1)
	phone("212-555-0134", 1)
	phone("212.555.0134", 1)
	phone("1-212-555-0134", 1)
	phone("020 7946 0958", 1)
	phone("030/9018200", 1)
	phone("01 23 45 67 89", 1)
	phone("(11) 91234-5678", 1)
	phone("(11) 1234-5678", 0) // an issue and its pages
	phone("8 (495) 123-45-67", 1)
	phone("03-1234-5678", 1)
	phone("06-12345678", 1)
	phone("tel 9018200", 1)
	phone("电话：13812345678", 1)
	phone("call me at 555 0134", 1)
	phone("02079460958", 1)
	phone("07140 253324\n2,Bo", 1)
	phone("6/26/1969, phone", 0)
	phone("13812345678", 0)
	phone("2125550134", 0)
	phone("123-456-7890", 0)
	phone("+1 112 555 0134", 0)
	phone("2026-11-30 10:15", 0)
	phone("+2026-11-30", 0)
	phone("192.168.100.200", 0)
	phone("200 300 4000 5000", 0)
	phone("1500000000", 0)
	phone("219-09-9999", 0)
}

// TestLabelsAdd checks that detectors with one label share its count, and that a
// detector that is off finds nothing.
func TestLabelsAdd(t *testing.T) {
	cfg := each()
	cfg.Builtin = []Builtin{{Email, "pii"}, {PaymentCard, "pii"}, {Secret, "secret"}}
	got := scanText(mustNew(t, cfg), "ann@example.com 4111111111111111 219-09-9999 +49 30 901820")
	if want := map[string]int64{"pii": 2}; !maps.Equal(got.Findings, want) {
		t.Errorf("findings are %v, want %v", got.Findings, want)
	}
}
