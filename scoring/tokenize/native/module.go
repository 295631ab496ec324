//go:build never

// Package native keeps the Go module in go.mod whose Rust source build.sh
// compiles. Nothing of its Go code is linked: that code passes texts as C
// strings, which end at the first NUL byte, and asks for a C++ library.
package native

import _ "github.com/daulet/tokenizers"
