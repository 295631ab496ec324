//go:build cgo && !notokenizers

package tokenize

/*
#cgo CFLAGS: -I${SRCDIR}/native
#cgo LDFLAGS: -L${SRCDIR}/native/lib -ltokenizers -ldl -lm -lpthread
#cgo noescape sluice_plan_make
#cgo nocallback sluice_plan_make
#cgo noescape sluice_encode
#cgo nocallback sluice_encode
#cgo noescape sluice_decode
#cgo nocallback sluice_decode
#cgo nocallback sluice_plan_free
#cgo nocallback sluice_ids_free
#cgo nocallback sluice_text_free

#include "sluice.h"
#include "native_digest.h" // native/build.sh writes it, and builds the library: run that first

// Both names carry a version: an archive that does not fit this file does not
// link. native/build.sh makes one that does.
extern void tokenizers_version_1_23_0(void);
void (*sluice_module_check)(void) = &tokenizers_version_1_23_0;
void (*sluice_header_check)(void) = &sluice_abi_1;

// The digest of the library's sources changes this object with the library,
// which makes the go command link anew.
const char sluice_digest[] = SLUICE_DIGEST;
*/
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"
)

// native is a model inside the Rust library. Its methods are safe for
// concurrent use until free.
type native struct {
	model *C.sluice_model
	// before and after are what the tokenizer adds around a text when special
	// tokens are asked for; they hold only for texts that are cut into pieces.
	before, after []uint32
	// wholeBecause tells why texts are not cut into pieces; empty when they are.
	wholeBecause string
}

// newNative compiles a model from the text of tokenizer.json and a settings
// document.
func newNative(tokenizer, settings []byte) (*native, error) {
	n := &native{}
	var message C.sluice_text
	code := C.sluice_load(bytesPtr(tokenizer), C.size_t(len(tokenizer)),
		bytesPtr(settings), C.size_t(len(settings)), &n.model, &message)
	if code != C.SLUICE_OK {
		return nil, nativeError(code, message)
	}
	info := C.sluice_model_info(n.model)
	n.before = append(n.before, idsView(info.before, info.before_len)...)
	n.after = append(n.after, idsView(info.after, info.after_len)...)
	n.wholeBecause = string(unsafe.Slice((*byte)(info.whole_because), int(info.whole_because_len)))
	return n, nil
}

// free gives the model's memory back. Nothing may use n afterwards.
func (n *native) free() {
	C.sluice_free(n.model)
	n.model = nil
}

// plan is what a body asks to encode. Its slices and texts are views into
// native memory, valid until free.
type plan struct {
	native     *C.sluice_plan
	text       string
	pieces     []C.sluice_piece
	prompts    []span
	ids        []uint32
	addSpecial bool
	cut        bool
}

// span is one prompt of a plan.
type span C.sluice_span

func (s *span) ofIDs() bool       { return s.kind == C.SLUICE_IDS }
func (s *span) isBeginning() bool { return s.kind == C.SLUICE_BEGINNING }

// plan renders a body and cuts it into pieces. The caller frees the plan.
func (n *native) plan(kind Kind, body []byte, now time.Time) (plan, error) {
	var p *C.sluice_plan
	var message C.sluice_text
	_, offset := now.Zone()
	code := C.sluice_plan_make(n.model, C.uint32_t(kind), bytesPtr(body), C.size_t(len(body)),
		C.int64_t(now.Unix()), C.int32_t(offset), &p, &message)
	if code != C.SLUICE_OK {
		return plan{}, nativeError(code, message)
	}
	return plan{
		native:     p,
		text:       unsafe.String((*byte)(p.text), int(p.text_len)),
		pieces:     unsafe.Slice(p.pieces, int(p.pieces_len)),
		prompts:    unsafe.Slice((*span)(p.prompts), int(p.prompts_len)),
		ids:        idsView(p.ids, p.ids_len),
		addSpecial: p.add_special != 0,
		cut:        p.cut != 0,
	}, nil
}

// textOf is the text of a piece, by index.
func (p *plan) textOf(i int) string {
	piece := &p.pieces[i]
	return p.text[piece.start : piece.start+piece.len]
}

// framed tells whether the tokenizer is asked for its own special tokens around
// a piece.
func (p *plan) framed() bool { return p.addSpecial && !p.cut }

func (p *plan) free() { C.sluice_plan_free(p.native) }

// encode returns the ids of text in Go memory.
func (n *native) encode(text string, addSpecial bool) ([]uint32, error) {
	var out C.sluice_ids
	var message C.sluice_text
	var add C.uint32_t
	if addSpecial {
		add = 1
	}
	code := C.sluice_encode(n.model, (*C.uint8_t)(unsafe.StringData(text)), C.size_t(len(text)), add, &out, &message)
	if code != C.SLUICE_OK {
		return nil, nativeError(code, message)
	}
	ids := make([]uint32, int(out.len))
	copy(ids, idsView(out.ptr, out.len))
	C.sluice_ids_free(out)
	return ids, nil
}

// decode returns the text of ids.
func (n *native) decode(ids []uint32, skipSpecial bool) (string, error) {
	var out, message C.sluice_text
	var skip C.uint32_t
	if skipSpecial {
		skip = 1
	}
	code := C.sluice_decode(n.model, (*C.uint32_t)(unsafe.SliceData(ids)), C.size_t(len(ids)), skip, &out, &message)
	if code != C.SLUICE_OK {
		return "", nativeError(code, message)
	}
	return takeText(out), nil
}

// nativePanic makes the library panic, for the test that it is caught.
func nativePanic() error {
	var message C.sluice_text
	code := C.sluice_panic(&message)
	if code == C.SLUICE_OK {
		return nil
	}
	return nativeError(code, message)
}

// nativeError turns a code and a message of the library into an error.
func nativeError(code C.int32_t, message C.sluice_text) error {
	text := takeText(message)
	switch code {
	case C.SLUICE_INVALID:
		return fmt.Errorf("%w: %s", ErrInvalid, text)
	case C.SLUICE_UNSUPPORTED:
		return fmt.Errorf("%w: %s", ErrUnsupported, text)
	case C.SLUICE_REJECTED:
		return &RenderError{Message: text}
	default:
		return errors.New(text)
	}
}

// takeText copies a text out of the library and frees it.
func takeText(t C.sluice_text) string {
	s := string(unsafe.Slice((*byte)(t.ptr), int(t.len)))
	C.sluice_text_free(t)
	return s
}

func bytesPtr(b []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.SliceData(b)) }

// idsView is native memory seen as a slice.
func idsView(p *C.uint32_t, n C.size_t) []uint32 {
	return unsafe.Slice((*uint32)(p), int(n))
}
