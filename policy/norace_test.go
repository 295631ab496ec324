//go:build !race

package policy

const raceFactor = 1
