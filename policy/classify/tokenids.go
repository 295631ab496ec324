package classify

// maxTokenID bounds what is taken for a token id: no vocabulary comes near.
const maxTokenID = 1<<31 - 1

// tokenIDs reads the list at w.at if it begins like token ids, decodes and scans
// them. It reports false, having read nothing, if the list is something else.
func (w *walker) tokenIDs() bool {
	s := w.s
	start := w.at
	w.at++
	if w.space(); w.at >= len(w.in) || w.in[w.at] < '0' || w.in[w.at] > '9' {
		w.at = start
		return false
	}
	s.ids = s.ids[:0]
	for {
		id, ok := w.tokenID()
		if !ok {
			// A fraction or a text among ids: the engine refuses it. What can be
			// scanned of it is, one by one.
			w.at = start
			s.why |= byTokenIDs
			return false
		}
		// Hardly a token is less than a byte of text, so that ids beyond the
		// budget of bytes need not be kept.
		if len(s.ids) < s.left {
			s.ids = append(s.ids, id)
		} else {
			s.why |= byBudget
		}
		w.space()
		if w.at >= len(w.in) || w.in[w.at] != ',' && w.in[w.at] != ']' {
			w.at = start
			s.why |= byTokenIDs
			return false
		}
		w.at++
		if w.in[w.at-1] == ']' {
			break
		}
		w.space()
	}
	s.look(w.at - start)
	s.decode()
	return true
}

func (w *walker) tokenID() (id uint32, ok bool) {
	start := w.at
	var n uint64
	for w.at < len(w.in) && w.in[w.at] >= '0' && w.in[w.at] <= '9' {
		if n = n*10 + uint64(w.in[w.at]-'0'); n > maxTokenID {
			return 0, false
		}
		w.at++
	}
	return uint32(n), w.at > start
}

// decode scans the text of the ids.
func (s *scan) decode() {
	if s.expired || len(s.ids) == 0 {
		return
	}
	if s.req.Decode == nil {
		s.why |= byTokenIDs
		return
	}
	text, ok := s.req.Decode(s.ids)
	if !ok {
		s.why |= byTokenIDs
		return
	}
	lv := &s.levels[bodyLevel]
	lv.unescaped = append(lv.unescaped[:0], text...)
	s.scanText(lv.unescaped, bodyLevel)
}
