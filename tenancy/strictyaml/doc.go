// Package strictyaml reads small configuration files so that what a file says
// is what it means: an unknown or repeated key, a value of the wrong kind, an
// anchor, alias, merge key or tag is a problem with its line and column, and
// all problems of a file are found in one pass.
//
// Messages name fields and kinds, never values, so that a secret pasted in the
// wrong place does not reach a log. A key that the format does not have is shown
// as Reader.ShowKey says.
package strictyaml
