package openai

import "github.com/sluicegate/sluice/gateway/jsonscan"

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

// watch returns the string of a member's key and what it is among the watched
// names, also being one that only this object has; it refuses the second of a
// name.
func (s *scanner) watch(seen *watched, key jsonscan.Token, also watched) (name []byte, w watched) {
	name = s.name(key)
	w = watchedOf(name)
	if also != 0 && string(name) == also.String() {
		w = also
	}
	if *seen&w != 0 && s.err == nil {
		s.refuse(errDuplicate(s.at.With(w.String())))
	}
	*seen |= w
	return name, w
}

// walk passes over a value inside a prompt of which nothing else is read.
func (s *scanner) walk() {
	switch s.Peek() {
	case '{':
		var seen watched
		s.Enter()
		for key, ok := s.Member(); ok; key, ok = s.Member() {
			w := watchedOf(s.name(key))
			if seen&w != 0 && s.err == nil {
				s.refuse(errDuplicateInside(s.at.String(), w))
			}
			seen |= w
			s.walk()
		}
	case '[':
		s.Enter()
		for s.Element() {
			s.walk()
		}
	default:
		s.Skip()
	}
}
