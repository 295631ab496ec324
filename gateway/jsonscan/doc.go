// Package jsonscan reads JSON texts in place, strictly and without copying, and
// changes single values in them while every other byte stays.
//
// A [Cursor] walks over a text; an [Edits] list is applied to it. Neither
// allocates. No error text of this package quotes the text it reads.
package jsonscan
