package translate

import (
	"strconv"
	"strings"

	"github.com/sluicegate/sluice/gateway/wire"
)

// Names speaks of a chat body in the terms of the messages body that it was made
// of. The zero value is ready for AppendChat.
type Names struct {
	// from has an entry for each chat message: the index of its message, and of the
	// block in it if it is of one block, or -1; both -1 for the system prompt.
	from []origin
}

type origin struct{ message, block int32 }

func (n *Names) reset() { n.from = n.from[:0] }

func (n *Names) add(a at) {
	o := origin{-1, -1}
	if a.root == "messages" {
		o.message = int32(a.indices[0])
		if a.depth > 1 {
			o.block = int32(a.indices[1])
		}
	}
	n.from = append(n.from, o)
}

// renamed are chat completions' names of fields, with those of the messages API.
// What comes after them in a path is kept, but for a tool's, whose names differ
// again.
var renamed = []struct{ chat, messages string }{
	{"stop", "stop_sequences"},
	{"user", "metadata.user_id"},
	{"max_completion_tokens", "max_tokens"},
	{"reasoning_effort", "output_config.effort"},
	{"response_format.json_schema.schema", "output_config.format.schema"},
	{"response_format", "output_config.format"},
	{"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"},
	{"tool_choice.function", "tool_choice"},
	{"stream_options", "stream"},
}

// Param returns the client's name for a path in the chat body, as a worker has
// given it: with indices in brackets or after dots.
func (n *Names) Param(path string) string {
	dotted := strings.NewReplacer("[", ".", "]", "").Replace(path)
	head, rest, _ := strings.Cut(dotted, ".")
	switch head {
	case "messages":
		return n.message(rest)
	case "tools":
		return tool(rest)
	}
	for _, r := range renamed {
		if dotted == r.chat {
			return r.messages
		}
		if after, ok := strings.CutPrefix(dotted, r.chat+"."); ok {
			return indexed(r.messages + "." + after)
		}
	}
	return path
}

// message returns the client's name of the message at the beginning of a path.
// Further down the two bodies have little in common.
func (n *Names) message(path string) string {
	index, _, _ := strings.Cut(path, ".")
	i, err := strconv.Atoi(index)
	if err != nil || i < 0 || i >= len(n.from) {
		return "messages"
	}
	switch o := n.from[i]; {
	case o.message < 0:
		return "system"
	case o.block < 0:
		return indexed("messages." + strconv.Itoa(int(o.message)))
	default:
		return indexed("messages." + strconv.Itoa(int(o.message)) + ".content." + strconv.Itoa(int(o.block)))
	}
}

func tool(path string) string {
	index, rest, _ := strings.Cut(path, ".")
	if _, err := strconv.Atoi(index); err != nil {
		return "tools"
	}
	rest = strings.TrimPrefix(strings.TrimPrefix(rest, "function"), ".")
	if after, ok := strings.CutPrefix(rest, "parameters"); ok {
		rest = "input_schema" + after
	}
	if rest != "" {
		rest = "." + rest
	}
	return indexed("tools." + index + rest)
}

// indexed writes the numbers of a dotted path in brackets.
func indexed(path string) string {
	var b strings.Builder
	for i, part := range strings.Split(path, ".") {
		if _, err := strconv.Atoi(part); err == nil {
			b.WriteString("[" + part + "]")
			continue
		}
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(part)
	}
	return b.String()
}

// Error returns a worker's refusal of the chat body in the client's terms. Since an
// error of the messages API has no param, its message names the field.
func (n *Names) Error(e wire.ErrorBody) wire.ErrorBody {
	if e.Param == "" {
		return e
	}
	theirs := n.Param(e.Param)
	if theirs != e.Param {
		e.Message = replaceName(e.Message, e.Param, theirs)
	}
	if !strings.Contains(e.Message, theirs) {
		e.Message = strings.TrimRight(e.Message, " ") + " (`" + theirs + "`)"
	}
	e.Param = theirs
	return e
}

// replaceName replaces a name where it stands alone or as the end of a path.
func replaceName(text, name, by string) string {
	var b strings.Builder
	for {
		i := strings.Index(text, name)
		if i < 0 {
			b.WriteString(text)
			return b.String()
		}
		end := i + len(name)
		b.WriteString(text[:i])
		if i > 0 && inName(text[i-1]) || end < len(text) && inName(text[end]) {
			b.WriteString(name)
		} else {
			b.WriteString(by)
		}
		text = text[end:]
	}
}

func inName(ch byte) bool {
	return ch == '_' || ch >= '0' && ch <= '9' || ch >= 'a' && ch <= 'z' || ch >= 'A' && ch <= 'Z'
}
