//go:build !race

package classify

const raceFactor = 1
