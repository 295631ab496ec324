package classify

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// corpusLine is a text with marks.
type corpusLine struct {
	Text string `json:"text"`
	N    int    `json:"n"`
}

// sample is a text with the values made, and what is to be found in it.
type sample struct {
	text string
	want map[string]int
}

// finds says which marks stand for a finding of which detector.
var finds = map[string]string{
	"card2": PaymentCard, "email2": Email, "phone2": Phone,
	"card": PaymentCard, "card-odd": PaymentCard, "card-tabs": PaymentCard, "iban": IBAN, "ssn": USSSN, "ssn-plain": USSSN, "email": Email, "email-odd": Email,
	"phone": Phone, "phone-word": Phone, "phone-bare": Phone, "key": PrivateKey, "key-escaped": PrivateKey, "secret": Secret, "secret:AWS": Secret, "aws-secret": Secret,
}

var mark = regexp.MustCompile(`«([^»]+)»`)

// corpus makes the samples of all files of a folder, the same at each call.
func corpus(t testing.TB, folder string) map[string][]sample {
	t.Helper()
	files, err := filepath.Glob("testdata/" + folder + "/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("there is no corpus: %v", err)
	}
	out := map[string][]sample{}
	m := maker{rand.New(rand.NewPCG(2026, 11))}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".jsonl")
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			var line corpusLine
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
				t.Fatalf("%s: %v: %s", file, err, lines.Bytes())
			}
			n := line.N
			switch {
			case !mark.MatchString(line.Text):
				n = 1
			case n == 0:
				n = 20
			}
			for range n {
				out[name] = append(out[name], m.sample(line.Text))
			}
		}
	}
	return out
}

// maker makes values.
type maker struct{ *rand.Rand }

func (m maker) sample(text string) sample {
	s := sample{want: map[string]int{}}
	s.text = mark.ReplaceAllStringFunc(text, func(found string) string {
		name := mark.FindStringSubmatch(found)[1]
		if d := finds[name]; d != "" {
			s.want[d]++
		}
		return m.value(name)
	})
	return s
}

// value makes what a mark stands for.
func (m maker) value(name string) string {
	if word, n := strings.TrimRight(name, "0123456789"), 0; word != name {
		n, _ = strconv.Atoi(name[len(word):])
		switch word {
		case "int":
			return m.number(n)
		case "hex":
			return m.from("0123456789abcdef", n)
		case "b64-":
			return m.from(digitChars+lowerChars+upperChars+"-_", n)
		}
	}
	make, ok := m.makers()[name]
	if !ok {
		panic("the corpus has no mark " + name)
	}
	return make()
}

func (m maker) makers() map[string]func() string {
	return map[string]func() string{
		"card":       func() string { return m.grouped(m.card()) },
		"card-odd":   func() string { return m.oddly(m.card()) },
		"card-tabs":  func() string { return m.marked(m.pick("\t", "_", ",")) },
		"card-wrong": func() string { return m.grouped(m.wrong(m.card())) },
		"iban":       func() string { return m.fours(m.iban()) },
		"iban-wrong": func() string { return m.fours(m.wrong(m.iban())) },
		"ssn":        func() string { return m.ssn(m.pick("-", "-", "-", " ")) },
		"ssn-plain":  func() string { return m.ssn("") },
		"email":      m.email,
		"email-odd": func() string {
			return m.pick("Ann.O'Hara+news@mail.example.org", "用户@例子.公司", "x_y@sub.sub2.example.travel", "a@b.co", "ANN@EXAMPLE.COM", "ann@localhost", "\"ann lee\"@example.com")
		},
		"card2":  m.otherCard,
		"email2": m.otherEmail,
		"phone2": m.otherPhone,
		"phone":  m.phone,
		"phone-word": func() string {
			return m.pick(m.number(8), m.number(10), "1"+m.pick("38", "59", "77")+m.number(8), m.phone())
		},
		"phone-bare": func() string {
			return m.pick("9"+m.number(6), "020"+m.number(8), "(0) 30 "+m.number(6), m.number(3)+"-"+m.number(4))
		},
		"key":         m.key,
		"key-escaped": func() string { return strings.ReplaceAll(m.key(), "\n", `\n`) },
		"secret":      func() string { return m.secret(secretTable[m.IntN(len(secretTable))].secretShape, 0) },
		"secret:AWS":  func() string { return m.secret(secretTable[m.IntN(4)].secretShape, 0) },
		"aws-secret": func() string {
			return m.random(func() string { return m.from(digitChars+lowerChars+upperChars+"/+", 40) }, true)
		},
		"uuid": func() string {
			h := m.from("0123456789abcdef", 32)
			return h[:8] + "-" + h[8:12] + "-4" + h[13:16] + "-a" + h[17:20] + "-" + h[20:]
		},
		"float": func() string { return fmt.Sprint(m.Float64() * 10) },
		"date": func() string {
			return m.pick(fmt.Sprintf("%d-%02d-%02d", 1950+m.IntN(80), 1+m.IntN(12), 1+m.IntN(28)), fmt.Sprintf("%02d.%02d.%d", 1+m.IntN(28), 1+m.IntN(12), 1950+m.IntN(80)), fmt.Sprintf("%d/%d/%d", 1+m.IntN(12), 1+m.IntN(28), 1950+m.IntN(80)))
		},
		"time": func() string { return fmt.Sprintf("%02d:%02d:%02d", m.IntN(24), m.IntN(60), m.IntN(60)) },
		"datetime": func() string {
			return fmt.Sprintf("20%02d-%02d-%02dT%02d:%02d:%02d.%06dZ", m.IntN(30), 1+m.IntN(12), 1+m.IntN(28), m.IntN(24), m.IntN(60), m.IntN(60), m.IntN(1e6))
		},
		"mmyy":  func() string { return fmt.Sprintf("%02d/%02d", 1+m.IntN(12), 26+m.IntN(6)) },
		"ts-ms": func() string { return fmt.Sprint(1_600_000_000_000 + m.Int64N(300_000_000_000)) },
		"ts-ns": func() string { return fmt.Sprint(1_600_000_000_000_000_000 + m.Int64N(300_000_000_000_000_000)) },
		"isbn":  func() string { return "978-" + m.number(1) + "-" + m.number(4) + "-" + m.number(4) + "-" + m.number(1) },
		"ip":    func() string { return fmt.Sprintf("%d.%d.%d.%d", 1+m.IntN(220), m.IntN(256), m.IntN(256), m.IntN(256)) },
		"mac": func() string {
			h := m.from("0123456789abcdef", 12)
			return h[:2] + ":" + h[2:4] + ":" + h[4:6] + ":" + h[6:8] + ":" + h[8:10] + ":" + h[10:]
		},
		"order": func() string {
			return m.pick("ORD-"+m.number(8), "#"+m.number(7), m.number(3)+"-"+m.number(7)+"-"+m.number(7), "INV/2026/"+m.number(6))
		},
		"vin": func() string { return m.from("ABCDEFGHJKLMNPRSTUVWXYZ0123456789", 17) },
		"b64": func() string { return m.from(digitChars+lowerChars+upperChars+"+/", 64*(1+m.IntN(6))) },
	}
}

func (m maker) pick(of ...string) string { return of[m.IntN(len(of))] }

// from makes n characters of an alphabet.
func (m maker) from(alphabet string, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[m.IntN(len(alphabet))]
	}
	return string(b)
}

// number makes n digits, the first not 0.
func (m maker) number(n int) string {
	if n == 0 {
		return ""
	}
	return m.from("123456789", 1) + m.from(digitChars, n-1)
}

// card makes a card number of one of the schemes, with its check digit.
func (m maker) card() string {
	kinds := []struct {
		prefix string
		n      int
	}{
		{"4", 16}, {"4", 16}, {"4", 16}, {"51", 16}, {"53", 16}, {"55", 16}, {"2500", 16}, {"2720", 16}, {"34", 15}, {"37", 15}, {"6011", 16}, {"65", 16},
		{"3530", 16}, {"36", 14}, {"3056", 14}, {"62", 16}, {"62", 19}, {"6759", 16}, {"5018", 16}, {"2202", 16}, {"4", 13}, {"4", 19}, {"8171", 16},
	}
	k := kinds[m.IntN(len(kinds))]
	body := k.prefix + m.from(digitChars, k.n-1-len(k.prefix))
	return body + checkDigit(body)
}

// checkDigit computes a Luhn digit by its definition, apart from luhn.
func checkDigit(body string) string {
	sum := 0
	for i := range len(body) {
		d := int(body[len(body)-1-i] - '0')
		if i%2 == 0 {
			d = d*2/10 + d*2%10
		}
		sum += d
	}
	return strconv.Itoa((10 - sum%10) % 10)
}

// wrong changes the last character, so that no check holds.
func (m maker) wrong(s string) string {
	last := s[len(s)-1]
	if !isDigit(last) {
		return s[:len(s)-1] + "7"
	}
	return s[:len(s)-1] + string('0'+(last-'0'+1+byte(m.IntN(8)))%10)
}

// grouped writes a card number in one of the ways in which people do.
func (m maker) grouped(n string) string {
	if m.IntN(2) == 0 {
		return n
	}
	sep := m.pick(" ", " ", "-", "\u00a0")
	if len(n) == 15 || len(n) == 14 {
		return n[:4] + sep + n[4:10] + sep + n[10:]
	}
	return strings.Join(fours(n), sep)
}

// marked writes a card number with its printed groups apart by a mark.
func (m maker) marked(mark string) string {
	n := m.card()
	for len(n) != 14 && len(n) != 15 && len(n) != 16 {
		n = m.card()
	}
	if len(n) < 16 {
		return n[:4] + mark + n[4:10] + mark + n[10:]
	}
	return strings.Join(fours(n), mark)
}

// oddly writes it in ways in which few do.
func (m maker) oddly(n string) string {
	switch m.IntN(5) {
	case 0:
		return strings.Join(strings.Split(n, ""), " ")
	case 1:
		return strings.Join(fours(n), " - ")
	case 2:
		return strings.Join(fours(n), ".")
	case 3:
		return n[:6] + " " + n[6:]
	}
	return n[:2] + " " + n[2:8] + " " + n[8:] // in no groups of four
}

func (m maker) fours(s string) string {
	return m.pick(s, strings.Join(fours(s), " "), strings.ToLower(s))
}

func fours(s string) (out []string) {
	for c := range slices.Chunk([]byte(s), 4) {
		out = append(out, string(c))
	}
	return out
}

// iban makes an account number of a country, with check digits.
func (m maker) iban() string {
	countries := strings.Split(ibanFormats, "|")
	entry := countries[m.IntN(len(countries))]
	country, account := entry[:2], ""
	for _, part := range regexp.MustCompile(`(\d+)([nac])`).FindAllStringSubmatch(entry[3:], -1) {
		n, _ := strconv.Atoi(part[1])
		account += m.from(map[string]string{"n": digitChars, "a": upperChars, "c": digitChars + upperChars}[part[2]], n)
	}
	return country + ibanCheck(country, account) + account
}

// ibanCheck computes the check digits by their definition, apart from mod97.
func ibanCheck(country, account string) string {
	rest := 0
	for _, c := range account + country + "00" {
		v := strconv.Itoa(strings.IndexRune(digitChars+upperChars, c))
		for _, d := range v {
			rest = (rest*10 + int(d-'0')) % 97
		}
	}
	return fmt.Sprintf("%02d", 98-rest)
}

func (m maker) ssn(sep string) string {
	area := 1 + m.IntN(899)
	if area == 666 {
		area++
	}
	return fmt.Sprintf("%03d%s%02d%s%04d", area, sep, 1+m.IntN(99), sep, 1+m.IntN(9999))
}

func (m maker) email() string {
	local := m.pick("ann", "bo.chen", "c_ode", "dana.whitfield", "e+orders", "j-ortega", "info", "x2") + m.pick("", m.number(2))
	host := m.pick("example.com", "example.org", "mail.example.net", "example.co.uk", "uni-example.de", "example.travel", "x.example.io")
	return m.pick(local, strings.ToUpper(local)) + "@" + host
}

// phone makes a number in a written form that says what it is.
func (m maker) phone() string {
	nxx := func() string { return m.from("23456789", 1) + m.number(2) }
	switch m.IntN(12) {
	case 0:
		return "+1 " + nxx() + " " + nxx() + " " + m.number(4)
	case 1:
		return "(" + nxx() + ") " + nxx() + "-" + m.number(4)
	case 2:
		return nxx() + "-" + nxx() + "-" + m.number(4)
	case 3:
		return nxx() + "." + nxx() + "." + m.number(4)
	case 4:
		return "+44 20 " + m.number(4) + " " + m.number(4)
	case 5:
		return "07" + m.number(3) + " " + m.number(6)
	case 6:
		return "+49 (0) " + m.number(2) + " " + m.number(7)
	case 7:
		return "0" + m.number(3) + "/" + m.number(6)
	case 8:
		return "0" + m.number(1) + " " + m.number(2) + " " + m.number(2) + " " + m.number(2) + " " + m.number(2)
	case 9:
		return "+33" + m.number(9)
	case 10:
		return "+86 13" + m.number(1) + " " + m.number(4) + " " + m.number(4)
	}
	return "0049 " + m.number(2) + " " + m.number(7)
}

// otherCard, otherEmail and otherPhone make values for the set that was written
// once the detectors stood.
func (m maker) otherCard() string {
	n := m.card()
	switch m.IntN(6) {
	case 0:
		return strings.Join(fours(n), "  ") // two spaces
	case 1:
		return n[:4] + "-" + n[4:8] + " " + n[8:12] + "-" + n[12:]
	case 2:
		return n[:4] + "/" + n[4:8] + "/" + n[8:12] + "/" + n[12:]
	}
	return m.grouped(n)
}

func (m maker) otherEmail() string {
	switch m.IntN(6) {
	case 0:
		return "support@" + m.from(lowerChars, 8) + ".example.museum"
	case 1:
		return m.from(lowerChars, 1) + "." + m.from(lowerChars, 7) + "@students.example.ac.jp"
	case 2:
		return "müller" + m.number(2) + "@bücher.example"
	case 3:
		return m.from(lowerChars, 6) + "%" + m.from(lowerChars, 3) + "@relay.example.org"
	}
	return m.from(lowerChars, 5) + "_" + m.from(lowerChars, 4) + "@" + m.from(lowerChars, 6) + "-example.com"
}

func (m maker) otherPhone() string {
	switch m.IntN(12) {
	case 0:
		return "+31 6 " + m.number(8)
	case 1:
		return "06-" + m.number(8)
	case 2:
		return "(11) 9" + m.number(4) + "-" + m.number(4)
	case 3:
		return "+91 98" + m.number(3) + " " + m.number(5)
	case 4:
		return "03-" + m.number(4) + "-" + m.number(4)
	case 5:
		return "0412 " + m.number(3) + " " + m.number(3)
	case 6:
		return "91 " + m.number(3) + " " + m.number(2) + " " + m.number(2)
	case 7:
		return "+39 333 " + m.number(7)
	case 8:
		return "8 (495) " + m.number(3) + "-" + m.number(2) + "-" + m.number(2)
	case 9:
		return "+55 (11) 9" + m.number(4) + "-" + m.number(4)
	case 10:
		return "+353-1-" + m.number(3) + "-" + m.number(4)
	}
	return "1.212." + m.from("23456789", 1) + m.number(2) + "." + m.number(4)
}

// key makes the text of a private key around random bytes.
func (m maker) key() string {
	label := m.pick("PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY", "ENCRYPTED PRIVATE KEY")
	der := make([]byte, 48+m.IntN(1200))
	for i := range der {
		der[i] = byte(m.IntN(256))
	}
	var b strings.Builder
	b.WriteString("-----BEGIN " + label + "-----\n")
	for line := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(der)), 64) {
		b.Write(line)
		b.WriteByte('\n')
	}
	b.WriteString("-----END " + label + "-----")
	return b.String()
}

// secret makes a secret of a shape, of more characters than the least.
func (m maker) secret(s secretShape, more int) string {
	var chars strings.Builder
	for c := range 128 {
		if s.chars[c] && c != '.' && c != '-' {
			chars.WriteByte(byte(c))
		}
	}
	anchor := ""
	for _, e := range secretTable {
		if e.before == s.before && e.behind == s.behind {
			anchor = string(e.anchor)
		}
	}
	return s.before + anchor + s.behind + m.random(func() string { return m.from(chars.String(), s.least+more) }, s.mixed)
}

// random makes texts until one looks like a key: few don't.
func (m maker) random(make func() string, mixed bool) string {
	for {
		if s := make(); random([]byte(s), mixed) {
			return s
		}
	}
}
