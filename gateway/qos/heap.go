package qos

// item is what a heap holds: it knows who comes first, and is told its place.
type item[T any] interface {
	before(T) bool
	moved(to int)
}

// heap is a binary heap whose items know their places, so that each can be
// taken out from anywhere.
type heap[T item[T]] []T

// leastCap is the capacity below which memory is not given back.
const leastCap = 64

func (h *heap[T]) push(x T) {
	*h = append(*h, x)
	h.up(len(*h) - 1)
}

// remove takes out the item at i.
func (h *heap[T]) remove(i int) {
	s := *h
	last := len(s) - 1
	s[i].moved(-1)
	moved := s[last]
	var none T
	s[last] = none
	*h = s[:last]
	if i < last {
		s[i] = moved
		h.fix(i)
	}
	*h = shrunk(*h)
}

// fix puts the item at i where it belongs after it has changed.
func (h heap[T]) fix(i int) {
	if !h.down(i) {
		h.up(i)
	}
}

func (h heap[T]) up(i int) {
	x := h[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !x.before(h[parent]) {
			break
		}
		h[i] = h[parent]
		h[i].moved(i)
		i = parent
	}
	h[i] = x
	x.moved(i)
}

// down reports whether the item moved.
func (h heap[T]) down(i int) bool {
	x, from := h[i], i
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(x) {
			break
		}
		h[i] = h[child]
		h[i].moved(i)
		i = child
	}
	h[i] = x
	x.moved(i)
	return i > from
}

// shrunk gives memory back when three quarters of it are not used.
func shrunk[S ~[]T, T any](s S) S {
	if cap(s) <= leastCap || len(s) >= cap(s)/4 {
		return s
	}
	return append(make(S, 0, cap(s)/2), s...)
}
