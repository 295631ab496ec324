package bodyscan

import "github.com/sluicegate/sluice/gateway/jsonscan"

// Watched is a set of names that must occur once in an object inside a prompt:
// what the gateway counts and labels must be what the worker reads.
type Watched uint16

// The names that are watched in every such object are role, type, content and
// text; the others where a dialect says so.
const (
	WatchRole Watched = 1 << iota
	WatchType
	WatchContent
	WatchText
	WatchFunction
	WatchName
	WatchSource
	WatchTool
	WatchDefinition
)

// watchedNames are the names, in the order of their bits; nothing changes them.
var watchedNames = [...]string{"role", "type", "content", "text", "function", "name", "source", "tool", "definition"}

// always are those that every object inside a prompt has once.
const always = WatchRole | WatchType | WatchContent | WatchText

// watchedOf returns the name that is watched among those of a set, or 0.
func watchedOf(name []byte, among Watched) Watched {
	var w Watched
	switch string(name) {
	case "role":
		w = WatchRole
	case "type":
		w = WatchType
	case "content":
		w = WatchContent
	case "text":
		w = WatchText
	case "function":
		w = WatchFunction
	case "name":
		w = WatchName
	case "source":
		w = WatchSource
	case "tool":
		w = WatchTool
	case "definition":
		w = WatchDefinition
	}
	return w & among
}

// String returns the name of a set of one.
func (w Watched) String() string {
	for i, n := range watchedNames {
		if w == 1<<i {
			return n
		}
	}
	return ""
}

// Watch returns the string of a member's key and what it is among the watched
// names, also being those that this object has besides; it refuses the second of
// a name.
func (s *Scanner) Watch(seen *Watched, key jsonscan.Token, also Watched) (name []byte, w Watched) {
	name = s.Name(key)
	w = watchedOf(name, always|also)
	if *seen&w != 0 && s.Err == nil {
		s.Refuse(Duplicate(s.At.With(w.String())))
	}
	*seen |= w
	return name, w
}

// Walk passes over a value inside a prompt of which nothing else is read.
func (s *Scanner) Walk() {
	switch s.Peek() {
	case '{':
		var seen Watched
		s.Enter()
		for key, ok := s.Member(); ok; key, ok = s.Member() {
			w := watchedOf(s.Name(key), always)
			if seen&w != 0 && s.Err == nil {
				s.Refuse(errDuplicateInside(s.At.String(), w))
			}
			seen |= w
			s.Walk()
		}
	case '[':
		s.Enter()
		for s.Element() {
			s.Walk()
		}
	default:
		s.Skip()
	}
}
