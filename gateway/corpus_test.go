package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// rawRequest is a file of testdata/framing: bytes that a client sends, and what it
// must get for them. In the file, a line that begins with "> " is text with Go's
// escapes, one with "*N " the same N times over; {KEY} stands for a good credential.
// The line "want STATUS CODE END" says how it ends: "close" means that the connection
// ends with the answer, "keep" that another request may follow.
type rawRequest struct {
	name, text, code string
	status           int
	keep             bool
}

func readRawRequests(t testing.TB) []rawRequest {
	t.Helper()
	files, err := filepath.Glob("testdata/framing/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []rawRequest
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c := rawRequest{name: strings.TrimSuffix(filepath.Base(file), ".txt")}
		var text strings.Builder
		for line := range strings.Lines(string(data)) {
			line = strings.TrimSuffix(line, "\n")
			if err := c.parse(line, &text); err != nil {
				t.Fatalf("%s: %q: %v", file, line, err)
			}
		}
		if c.text = text.String(); c.status == 0 || c.text == "" {
			t.Fatalf("%s says nothing, or not what is wanted of it", file)
		}
		all = append(all, c)
	}
	return all
}

// parse takes one line of the file.
func (c *rawRequest) parse(line string, text *strings.Builder) error {
	switch {
	case strings.HasPrefix(line, "#"):
		return nil
	case strings.HasPrefix(line, "want "):
		var end string
		_, err := fmt.Sscanf(line, "want %d %s %s", &c.status, &c.code, &end)
		c.keep = end == "keep"
		if err == nil && !c.keep && end != "close" {
			err = errors.New("the end is neither keep nor close")
		}
		return err
	}
	times := 1
	rest, ok := strings.CutPrefix(line, "> ")
	if !ok {
		count, after, found := strings.Cut(strings.TrimPrefix(line, "*"), " ")
		n, err := strconv.Atoi(count)
		if err != nil || !found {
			return errors.New("this is no line of a request")
		}
		times, rest = n, after
	}
	raw, err := strconv.Unquote(`"` + strings.ReplaceAll(rest, `"`, `\"`) + `"`)
	if err != nil {
		return err
	}
	text.WriteString(strings.Repeat(strings.ReplaceAll(raw, "{KEY}", goodKey), times))
	return nil
}

// method is the one that the request's answer has to be read for.
func (c *rawRequest) method() string {
	m, _, _ := strings.Cut(c.text, " ")
	return m
}

// TestRawRequests sends each request of the corpus with another one behind it, in
// clear and over TLS, at once and byte by byte. What is refused ends its connection
// after one answer, and the request behind it reaches nobody; what is served ends
// where it should, so that the one behind it is served too.
func TestRawRequests(t *testing.T) {
	all := readRawRequests(t)
	if len(all) < 150 {
		t.Fatalf("the corpus has %d requests only", len(all))
	}
	for _, secure := range []bool{false, true} {
		var opts []rigOption
		if secure {
			opts = append(opts, withTLS())
		}
		worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
		r := newRig(t, []string{worker.URL()}, opts...)
		for _, pieces := range []bool{false, true} {
			name := map[bool]string{false: "clear", true: "TLS"}[secure] + map[bool]string{false: ", at once", true: ", byte by byte"}[pieces]
			t.Run(name, func(t *testing.T) {
				for _, c := range all {
					t.Run(c.name, func(t *testing.T) {
						t.Parallel()
						c.send(t, r, worker, pieces, c.name+" "+name)
					})
				}
			})
		}
		r.idle()
	}
}

// send sends the request and judges what comes back. marker tells the request behind
// it from all others.
func (c *rawRequest) send(t *testing.T, r *rig, worker *gatewaytest.Worker, pieces bool, marker string) {
	behind := gatewaytest.RequestText("POST", "/v1/chat/completions", strings.Replace(chatBody, "hello", marker, 1),
		"Authorization: Bearer "+goodKey, "Connection: close")
	conn := r.dial()
	step := len(c.text) + len(behind)
	if pieces {
		step = 1 + len(c.text)/4096 // a long one in longer pieces
	}
	for text := c.text + behind; text != ""; {
		n := min(step, len(text))
		if conn.Write(text[:n]) != nil {
			break // refused by now
		}
		text = text[n:]
	}
	answers, bodies := readAnswers(t, conn.Closed(), c.method())
	want := []int{c.status}
	if c.keep {
		want = append(want, 200)
	}
	if fmt.Sprint(answers) != fmt.Sprint(want) {
		t.Fatalf("answers %v %q, want %v", answers, bodies, want)
	}
	if c.code != "-" && c.method() != "HEAD" && !strings.Contains(bodies[0], `"code":"`+c.code+`"`) {
		t.Errorf("answer %s, want code %s", bodies[0], c.code)
	}
	reached := 0
	for _, seen := range worker.Seen() {
		if strings.Contains(string(seen.Body), `"`+marker+`"`) {
			reached++
		}
	}
	if (reached == 1) != c.keep || reached > 1 {
		t.Errorf("the request behind it has reached a worker %d times", reached)
	}
}

// readAnswers splits what a connection has answered, the first to a request of the
// given method and the others to POST.
func readAnswers(t *testing.T, text, method string) (statuses []int, bodies []string) {
	t.Helper()
	in := bufio.NewReader(strings.NewReader(text))
	for {
		if _, err := in.Peek(1); err != nil {
			return statuses, bodies
		}
		resp, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%v in %q", err, text)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("%v in %q", err, text)
		}
		if resp.StatusCode >= 400 && len(statuses) == 0 && resp.Header.Get("X-Request-Id") == "" {
			t.Error("the answer has no x-request-id")
		}
		if resp.StatusCode >= 500 && resp.Header.Get("X-Should-Retry") != "false" {
			t.Errorf("a client would try again: %v", resp.Header)
		}
		statuses, bodies = append(statuses, resp.StatusCode), append(bodies, string(body))
		method = "POST"
	}
}
