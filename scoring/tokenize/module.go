//go:build never

package tokenize

// The Rust source of this module is compiled by native/build.sh; the import
// keeps its version in go.mod. Nothing of its Go code is linked: that code
// passes texts as C strings, which end at the first NUL byte, and asks for a C++
// library.
import _ "github.com/daulet/tokenizers"
