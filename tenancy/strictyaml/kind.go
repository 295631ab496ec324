package strictyaml

import "github.com/goccy/go-yaml/ast"

// Kind is what a value is to YAML.
type Kind uint8

// The kinds of values.
const (
	Other   Kind = iota
	Nothing      // null, an empty value, or no value
	Mapping
	List
	Bool
	Integer
	Float
	NonFinite // an infinity, or not a number
	Text      // plain or in quotes
	Block     // text after | or >
	Anchor
	Alias
	Tag
	MergeKey
)

// String names the kind in plain words, for "should be …, not …".
func (k Kind) String() string {
	switch k {
	case Nothing:
		return "nothing"
	case Mapping:
		return "a mapping"
	case List:
		return "a list"
	case Bool:
		return "true or false"
	case Integer, Float, NonFinite:
		return "a number"
	case Text, Block:
		return "text"
	case Anchor:
		return "an anchor, which is not allowed here"
	case Alias:
		return "an alias, which is not allowed here"
	case Tag:
		return "a tag, which is not allowed here"
	case MergeKey:
		return "a merge key, which is not allowed here"
	}
	return "something else"
}

// Kind returns what the value is.
func (n Node) Kind() Kind {
	switch n.ast.(type) {
	case nil, *ast.NullNode:
		return Nothing
	case *ast.MappingNode:
		return Mapping
	case *ast.SequenceNode:
		return List
	case *ast.BoolNode:
		return Bool
	case *ast.IntegerNode:
		return Integer
	case *ast.FloatNode:
		return Float
	case *ast.InfinityNode, *ast.NanNode:
		return NonFinite
	case *ast.StringNode:
		return Text
	case *ast.LiteralNode:
		return Block
	case *ast.AnchorNode:
		return Anchor
	case *ast.AliasNode:
		return Alias
	case *ast.TagNode:
		return Tag
	case *ast.MergeKeyNode:
		return MergeKey
	}
	return Other
}
