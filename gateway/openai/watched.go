package openai

// watched is a set of names that must occur once in an object inside a prompt:
// what the gateway counts and labels must be what the worker reads.
type watched uint8

const (
	watchRole watched = 1 << iota
	watchType
	watchContent
	watchText
	watchFunction
	watchName
)

// watchedOf returns the name that is watched in every object inside a prompt,
// or 0.
func watchedOf(name []byte) watched {
	switch string(name) {
	case "role":
		return watchRole
	case "type":
		return watchType
	case "content":
		return watchContent
	case "text":
		return watchText
	}
	return 0
}

// String returns the name of a set of one.
func (w watched) String() string {
	switch w {
	case watchRole:
		return "role"
	case watchType:
		return "type"
	case watchContent:
		return "content"
	case watchText:
		return "text"
	case watchFunction:
		return "function"
	case watchName:
		return "name"
	}
	return ""
}

// once refuses the second of a name in one object.
func (s *scanner) once(seen *watched, w watched) {
	if *seen&w != 0 && s.err == nil {
		s.refuse(errDuplicate(s.at.with(w.String())))
	}
	*seen |= w
}

// walk passes over a value inside a prompt of which nothing else is read.
func (s *scanner) walk() {
	switch s.peek() {
	case '{':
		s.enter()
		var seen watched
		for first := true; ; first = false {
			key, ok := s.member(first)
			if !ok {
				return
			}
			w := watchedOf(s.name(key))
			if seen&w != 0 && s.err == nil {
				s.refuse(errDuplicateInside(s.at.String(), w))
			}
			seen |= w
			s.walk()
		}
	case '[':
		s.enter()
		for first := true; s.element(first); first = false {
			s.walk()
		}
	default:
		s.skip()
	}
}
