/* The C interface of the native half of scoring/tokenize. */
#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>

/* Everything that a call returns is owned by the library and given back with
 * the sluice_*_free of its type. Texts are UTF-8, any byte allowed, never
 * terminated. A pointer with length 0 is null. A call that can fail returns 0, or
 * a code and a message. */

enum {
  SLUICE_OK = 0,
  SLUICE_INVALID = 1,     /* the body is no request of its kind */
  SLUICE_UNSUPPORTED = 2, /* cannot be computed exactly here */
  SLUICE_REJECTED = 3,    /* the chat template rejects the conversation */
  SLUICE_INTERNAL = 4,    /* the model's files, or this library */
};

enum { SLUICE_CHAT = 1, SLUICE_COMPLETION = 2 };

typedef struct sluice_model sluice_model;

typedef struct {
  uint8_t *ptr;
  size_t len;
} sluice_text;

typedef struct {
  uint32_t *ptr;
  size_t len;
} sluice_ids;

typedef struct {
  size_t start, len; /* bytes of the plan's text */
  uint32_t id;       /* of a special token */
  uint32_t special;
} sluice_piece;

enum {
  SLUICE_PIECES = 0,
  SLUICE_IDS = 1,
  SLUICE_BEGINNING = 2, /* pieces that the prompt begins with; the rest is not known */
};

typedef struct {
  size_t start, end; /* pieces, or ids */
  uint32_t kind;
} sluice_span;

typedef struct {
  const uint8_t *text;
  size_t text_len;
  const sluice_piece *pieces;
  size_t pieces_len;
  const sluice_span *prompts;
  size_t prompts_len;
  const uint32_t *ids;
  size_t ids_len;
  uint32_t add_special;
  uint32_t cut;
} sluice_plan;

typedef struct {
  const uint32_t *before;
  size_t before_len;
  const uint32_t *after;
  size_t after_len;
  const uint8_t *whole_because; /* empty when texts are cut into pieces */
  size_t whole_because_len;
} sluice_info;

/* Changes its name with this header. */
void sluice_abi_1(void);

int32_t sluice_load(const uint8_t *tokenizer, size_t tokenizer_len,
                    const uint8_t *settings, size_t settings_len,
                    sluice_model **out, sluice_text *message);
void sluice_free(sluice_model *model);

/* The slices belong to the model. */
sluice_info sluice_model_info(const sluice_model *model);

/* unix_time and utc_offset, in seconds, are what the template's clock shows. */
int32_t sluice_plan_make(const sluice_model *model, uint32_t kind,
                         const uint8_t *body, size_t body_len,
                         int64_t unix_time, int32_t utc_offset,
                         sluice_plan **out, sluice_text *message);
void sluice_plan_free(sluice_plan *plan);

int32_t sluice_encode(const sluice_model *model, const uint8_t *text,
                      size_t text_len, uint32_t add_special, sluice_ids *out,
                      sluice_text *message);
void sluice_ids_free(sluice_ids ids);

int32_t sluice_decode(const sluice_model *model, const uint32_t *ids,
                      size_t ids_len, uint32_t skip_special, sluice_text *out,
                      sluice_text *message);
void sluice_text_free(sluice_text text);

/* Panics inside and is caught: for the test that nothing crosses the border. */
int32_t sluice_panic(sluice_text *message);

#endif
