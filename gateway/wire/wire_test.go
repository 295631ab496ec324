package wire

import "testing"

func TestFieldsAreFoundByName(t *testing.T) {
	seen := map[string]bool{}
	for f := range FieldCount {
		name := f.String()
		if got := FieldOf([]byte(name)); got != f {
			t.Errorf("FieldOf(%s) = %v, want %v", name, got, f)
		}
		if seen[name] {
			t.Errorf("%s stands twice", name)
		}
		seen[name] = true
	}
	for _, name := range []string{"", "Model", "model ", "unread", "messages.content"} {
		if got := FieldOf([]byte(name)); got != FieldNone {
			t.Errorf("FieldOf(%q) = %v, want none", name, got)
		}
	}
}

func TestResetForgets(t *testing.T) {
	n := int64(3)
	r := Request{
		Operation: Chat, Model: []byte("m"), Stream: true, N: &n, ToolNames: [][]byte{[]byte("a")}, ChatForm: []byte("{}"),
		Places: Places{Size: 9, Scratch: make([]byte, 5, 10)},
	}
	r.Reset()
	if r.Operation != 0 || r.Model != nil || r.Stream || r.N != nil || len(r.ToolNames) != 0 || r.ChatForm != nil || r.Places.Size != 0 || len(r.Places.Scratch) != 0 {
		t.Errorf("a reset leaves %+v", r)
	}
	if cap(r.ToolNames) != 1 || cap(r.Places.Scratch) != 10 {
		t.Error("a reset drops memory that serves again")
	}
	r.Places.Scratch = make([]byte, 0, maxScratch+1)
	if r.Reset(); r.Places.Scratch != nil {
		t.Error("a reset keeps the memory of a huge body")
	}
}

func TestFlagsSpelt(t *testing.T) {
	if got := (FirstToken | Content | Malformed).String(); got != "first+content+malformed" {
		t.Errorf("got %s", got)
	}
	if (FirstToken | Content).Has(Content|Done) || !(FirstToken | Content).Has(Content) {
		t.Error("Has is not about all of them")
	}
}
