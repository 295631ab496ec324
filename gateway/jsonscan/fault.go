package jsonscan

// String says what is wrong with a text, without quoting it.
func (f Fault) String() string {
	return [...]string{
		FaultNone:     "nothing is wrong",
		FaultEmpty:    "it is empty",
		FaultBOM:      "it begins with a byte order mark",
		FaultEnd:      "it ends too early",
		FaultTrailing: "more follows after the value",
		FaultSyntax:   "a value is expected",
		FaultComma:    "a comma or a closing bracket is expected",
		FaultKey:      "a key in double quotes is expected",
		FaultColon:    "a colon is expected after a key",
		FaultControl:  "a string holds a control character that is not escaped",
		FaultEscape:   "a string holds an escape that does not exist",
		FaultUTF8:     "a string is not valid UTF-8",
		FaultNumber:   "a number is not well formed",
		FaultLiteral:  "a word other than true, false and null stands outside a string",
		FaultNaN:      "NaN and Infinity are no JSON numbers",
		FaultDepth:    "it nests too deep",
	}[f]
}

// KindOf names the kind of the value at the start of b.
func KindOf(b []byte) string {
	if len(b) == 0 {
		return "nothing"
	}
	switch b[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}
