/*
 * The part of the libjpeg binding that has to be C: libjpeg reports errors by a callback that must not
 * return, so every entry point here sets a jump target, and no jump ever leaves this file. Rust sees
 * plain calls that return 0, or 1 with a message.
 *
 * It also brings the memory that libjpeg works in: one arena that is kept from image to image, so that
 * decoding allocates nothing once the largest image was seen, and that refuses to grow beyond a limit.
 */

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 3000000
#error "libjpeg-turbo 3 or newer is needed"
#endif

/* What the SIMD code asks of rows; the library's own memory manager aligns alike. */
#define ALIGN 32
/* What is kept between images at most. */
#define KEEP ((size_t)64 << 20)
/* More scans than any encoder writes; without a limit, a small file can ask for hours of work. */
#define MAX_SCANS 100
/* What lj_rows returns beside 0 and 1. */
#define GAVE_UP 2

/*
 * The part of libjpeg's entropy decoder that is replaced. jpegint.h is not installed, but these two have
 * come first since version 6b.
 */
struct jpeg_entropy_decoder {
  void (*start_pass)(j_decompress_ptr jpeg);
  boolean (*decode_mcu)(j_decompress_ptr jpeg, JBLOCKROW *blocks);
};

struct block {
  struct block *next;
  size_t size, used;
};

/* Replaces libjpeg's opaque types of the same names. The whole array is in memory. */
struct jvirt_sarray_control {
  JSAMPARRAY rows;
  JDIMENSION width, height;
  struct jvirt_sarray_control *next;
};

struct jvirt_barray_control {
  JBLOCKARRAY rows;
  JDIMENSION width, height;
  struct jvirt_barray_control *next;
};

/* Reads the next unit of a scan into that many blocks of zeros, or steps over it if `blocks` is null;
 * 0 where it can't. */
typedef int lj_unit(void *state, JBLOCKROW *blocks);

struct lj {
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  jmp_buf jump;
  boolean created;
  struct block *blocks;
  size_t total, limit;
  struct jvirt_sarray_control *sarrays;
  struct jvirt_barray_control *barrays;
  /* What reads units in libjpeg's place during lj_rows. */
  lj_unit *unit;
  void *state;
  boolean gave_up;
  char message[JMSG_LENGTH_MAX];
};

/* What lj_open tells; mirrored in mod.rs. */
struct lj_header {
  uint32_t width, height;
  uint32_t components;
  /* The largest sampling factor along a row. */
  uint32_t max_h;
};

struct lj_table {
  /* How many codes there are of each length from 1 on, and the symbols in the order of their codes. */
  uint8_t counts[16];
  uint8_t symbols[256];
};

/* A block of a unit: its component, and the tables of its first coefficient and of the others. */
struct lj_block {
  uint8_t component, dc, ac;
  /* Only the first coefficient is looked at. */
  uint8_t dc_only;
};

/* What lj_scan tells; mirrored in scan.rs. */
struct lj_scan {
  /* Where its data begins in the file. */
  uint64_t at;
  /* Units of a row, and the first and last whose blocks are looked at. */
  uint32_t units, first, last;
  /* Units between restart markers; 0 if there are none. */
  uint32_t restart;
  uint32_t blocks;
  struct lj_block block[D_MAX_BLOCKS_IN_MCU];
  struct lj_table dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
};

/* ---- errors ---- */

static struct lj *of(j_common_ptr common)
{
  return (struct lj *)common->client_data;
}

static _Noreturn void fail(struct lj *lj, const char *message)
{
  snprintf(lj->message, sizeof(lj->message), "%s", message);
  longjmp(lj->jump, 1);
}

static _Noreturn void error_exit(j_common_ptr common)
{
  struct lj *lj = of(common);
  (*common->err->format_message)(common, lj->message);
  longjmp(lj->jump, 1);
}

/* Damage that decoding survives. It is counted only, so a file of nothing else costs nothing more. */
static void emit_message(j_common_ptr common, int level)
{
  if (level < 0)
    common->err->num_warnings++;
}

static void output_message(j_common_ptr common)
{
  (void)common;
}

static void progress_monitor(j_common_ptr common)
{
  if (((j_decompress_ptr)common)->input_scan_number > MAX_SCANS)
    fail(of(common), "it has more than 100 scans");
}

/* ---- memory ---- */

static void release(struct lj *lj)
{
  while (lj->blocks != NULL) {
    struct block *next = lj->blocks->next;
    free(lj->blocks);
    lj->blocks = next;
  }
}

/* Forgets everything allocated. What took several blocks will take one the next time. */
static void rewind_arena(struct lj *lj)
{
  size_t want = 0;
  struct block *block;
  for (block = lj->blocks; block != NULL; block = block->next)
    want += block->size;
  if (lj->blocks != NULL && (lj->blocks->next != NULL || want > KEEP)) {
    release(lj);
    if (want <= KEEP && (lj->blocks = malloc(sizeof(struct block) + want)) != NULL) {
      lj->blocks->next = NULL;
      lj->blocks->size = want;
    }
  }
  if (lj->blocks != NULL)
    lj->blocks->used = 0;
  lj->total = 0;
  lj->sarrays = NULL;
  lj->barrays = NULL;
}

static void *alloc(j_common_ptr common, int pool, size_t size)
{
  struct lj *lj = of(common);
  struct block *block = lj->blocks;
  uintptr_t at;
  (void)pool; /* Nothing outlives its image. */
  if (size > lj->limit || size + 2 * ALIGN > lj->limit - lj->total)
    fail(lj, "it needs more memory to decode than the limit (DecodeOptions::max_bytes)");
  size = (size + ALIGN - 1) / ALIGN * ALIGN + ALIGN;
  lj->total += size;
  if (block == NULL || block->size - block->used < size) {
    size_t room = size > ((size_t)1 << 18) ? size : (size_t)1 << 18;
    block = malloc(sizeof(struct block) + room);
    if (block == NULL)
      fail(lj, "out of memory");
    block->next = lj->blocks;
    block->size = room;
    block->used = 0;
    lj->blocks = block;
  }
  at = (uintptr_t)(block + 1) + block->used;
  block->used += size;
  return (void *)((at + ALIGN - 1) / ALIGN * ALIGN);
}

static void *alloc_rows(j_common_ptr common, size_t bytes, JDIMENSION count)
{
  char **rows = alloc(common, JPOOL_IMAGE, count * sizeof(char *));
  char *data;
  JDIMENSION i;
  if (count != 0 && bytes > SIZE_MAX / count)
    fail(of(common), "out of memory");
  data = alloc(common, JPOOL_IMAGE, bytes * count);
  for (i = 0; i < count; i++)
    rows[i] = data + bytes * i;
  return rows;
}

static JSAMPARRAY alloc_sarray(j_common_ptr common, int pool, JDIMENSION width, JDIMENSION height)
{
  /* Of bytes: lj_open refuses wider samples. The SIMD code writes whole vectors. */
  size_t bytes = ((size_t)width + 2 * ALIGN - 1) / (2 * ALIGN) * (2 * ALIGN);
  (void)pool;
  return alloc_rows(common, bytes, height);
}

static JBLOCKARRAY alloc_barray(j_common_ptr common, int pool, JDIMENSION width, JDIMENSION height)
{
  (void)pool;
  return alloc_rows(common, (size_t)width * sizeof(JBLOCK), height);
}

static jvirt_sarray_ptr request_virt_sarray(j_common_ptr common, int pool, boolean pre_zero,
                                            JDIMENSION width, JDIMENSION height, JDIMENSION access)
{
  struct jvirt_sarray_control *array = alloc(common, pool, sizeof(*array));
  (void)pre_zero;
  (void)access;
  array->rows = NULL;
  array->width = width;
  array->height = height;
  array->next = of(common)->sarrays;
  of(common)->sarrays = array;
  return array;
}

static jvirt_barray_ptr request_virt_barray(j_common_ptr common, int pool, boolean pre_zero,
                                            JDIMENSION width, JDIMENSION height, JDIMENSION access)
{
  struct jvirt_barray_control *array = alloc(common, pool, sizeof(*array));
  (void)pre_zero;
  (void)access;
  array->rows = NULL;
  array->width = width;
  array->height = height;
  array->next = of(common)->barrays;
  of(common)->barrays = array;
  return array;
}

static void realize_virt_arrays(j_common_ptr common)
{
  struct jvirt_sarray_control *s;
  struct jvirt_barray_control *b;
  JDIMENSION y;
  for (s = of(common)->sarrays; s != NULL; s = s->next) {
    if (s->rows == NULL) {
      s->rows = alloc_sarray(common, JPOOL_IMAGE, s->width, s->height);
      /* Always zeroed: what a damaged file leaves out must not be an earlier image. */
      for (y = 0; y < s->height; y++)
        memset(s->rows[y], 0, s->width);
    }
  }
  for (b = of(common)->barrays; b != NULL; b = b->next) {
    if (b->rows == NULL) {
      b->rows = alloc_barray(common, JPOOL_IMAGE, b->width, b->height);
      for (y = 0; y < b->height; y++)
        memset(b->rows[y], 0, (size_t)b->width * sizeof(JBLOCK));
    }
  }
}

static JSAMPARRAY access_virt_sarray(j_common_ptr common, jvirt_sarray_ptr array, JDIMENSION start,
                                     JDIMENSION count, boolean writable)
{
  (void)writable;
  if (array->rows == NULL || start > array->height || count > array->height - start)
    fail(of(common), "libjpeg reached beyond an array");
  return array->rows + start;
}

static JBLOCKARRAY access_virt_barray(j_common_ptr common, jvirt_barray_ptr array, JDIMENSION start,
                                      JDIMENSION count, boolean writable)
{
  (void)writable;
  if (array->rows == NULL || start > array->height || count > array->height - start)
    fail(of(common), "libjpeg reached beyond an array");
  return array->rows + start;
}

/* Memory is taken back by rewind_arena alone. */
static void free_pool(j_common_ptr common, int pool)
{
  (void)common;
  (void)pool;
}

/* ---- decoding ---- */

static void create(struct lj *lj)
{
  static const unsigned char nothing[1] = { 0 };
  struct jpeg_decompress_struct *jpeg = &lj->jpeg;
  struct jpeg_memory_mgr *mem;

  jpeg_create_decompress(jpeg);
  lj->created = TRUE;
  jpeg_mem_src(jpeg, nothing, 1);
  lj->progress.progress_monitor = progress_monitor;
  jpeg->progress = &lj->progress;

  /* What was allocated up to here is libjpeg's own, and `self_destruct` frees it. */
  mem = jpeg->mem;
  mem->alloc_small = alloc;
  mem->alloc_large = alloc;
  mem->alloc_sarray = alloc_sarray;
  mem->alloc_barray = alloc_barray;
  mem->request_virt_sarray = request_virt_sarray;
  mem->request_virt_barray = request_virt_barray;
  mem->realize_virt_arrays = realize_virt_arrays;
  mem->access_virt_sarray = access_virt_sarray;
  mem->access_virt_barray = access_virt_barray;
  mem->free_pool = free_pool;
}

/* After an error libjpeg's state is thrown away: it is not meant to go on from anywhere. */
static int failed(struct lj *lj)
{
  if (lj->created)
    jpeg_destroy_decompress(&lj->jpeg);
  lj->created = FALSE;
  return 1;
}

struct lj *lj_new(void)
{
  struct lj *lj = calloc(1, sizeof(struct lj));
  if (lj == NULL)
    return NULL;
  lj->jpeg.err = jpeg_std_error(&lj->errors);
  lj->errors.error_exit = error_exit;
  lj->errors.emit_message = emit_message;
  lj->errors.output_message = output_message;
  lj->jpeg.client_data = lj;
  return lj;
}

void lj_free(struct lj *lj)
{
  (void)failed(lj);
  release(lj);
  free(lj);
}

const char *lj_message(const struct lj *lj)
{
  return lj->message;
}

/* Reads the header of a file that must stay where it is until the last call for it. */
int lj_open(struct lj *lj, const unsigned char *bytes, size_t len, uint64_t limit, struct lj_header *header)
{
  struct jpeg_decompress_struct *jpeg = &lj->jpeg;
  int i;

  if (setjmp(lj->jump))
    return failed(lj);
  if (lj->created)
    jpeg_abort_decompress(jpeg);
  else
    create(lj);
  rewind_arena(lj);
  lj->limit = limit < SIZE_MAX / 2 ? (size_t)limit : SIZE_MAX / 2;
  /* Tables of the last image, which a file without its own must not see. */
  for (i = 0; i < NUM_QUANT_TBLS; i++)
    jpeg->quant_tbl_ptrs[i] = NULL;
  for (i = 0; i < NUM_HUFF_TBLS; i++) {
    jpeg->dc_huff_tbl_ptrs[i] = NULL;
    jpeg->ac_huff_tbl_ptrs[i] = NULL;
  }
  jpeg_mem_src(jpeg, bytes, len);
  (void)jpeg_read_header(jpeg, TRUE);
  if (jpeg->data_precision != 8) {
    snprintf(lj->message, sizeof(lj->message), "samples of %d bits are not supported, only of 8",
             jpeg->data_precision);
    longjmp(lj->jump, 1);
  }
  header->width = jpeg->image_width;
  header->height = jpeg->image_height;
  header->components = (uint32_t)jpeg->num_components;
  header->max_h = (uint32_t)jpeg->max_h_samp_factor;
  return 0;
}

/*
 * Begins to decode at `scale`/8 of the size, into pixels of `channels` bytes: 3 are RGB, 4 are CMYK as
 * stored. `*x` and `*width` say which columns are wanted and get those that rows will have; a
 * `*width` of 0 asks for all.
 */
int lj_start(struct lj *lj, uint32_t scale, uint32_t channels, uint32_t *x, uint32_t *width)
{
  struct jpeg_decompress_struct *jpeg = &lj->jpeg;
  JDIMENSION left, columns;

  if (setjmp(lj->jump))
    return failed(lj);
  if (!lj->created)
    fail(lj, "no file is open");
  jpeg->scale_num = scale;
  jpeg->scale_denom = 8;
  jpeg->out_color_space = channels == 4 ? JCS_CMYK : JCS_RGB;
  /* It would only make up detail that is not there yet in unfinished progressive files, from rows that
   * depend on what was decoded before. */
  jpeg->do_block_smoothing = FALSE;
  (void)jpeg_start_decompress(jpeg);
  if ((uint32_t)jpeg->output_components != channels)
    fail(lj, "its components can't be converted to RGB");
  left = *x;
  columns = *width;
  if (columns == 0) {
    left = 0;
    columns = jpeg->output_width;
  }
  if (columns != jpeg->output_width)
    jpeg_crop_scanline(jpeg, &left, &columns);
  *x = left;
  *width = columns;
  return 0;
}

static int copy_table(struct lj_table *to, const JHUFF_TBL *from)
{
  if (from == NULL)
    return 0;
  memcpy(to->counts, from->bits + 1, sizeof(to->counts));
  memcpy(to->symbols, from->huffval, sizeof(to->symbols));
  return 1;
}

/*
 * Describes the scan of a started file of `len` bytes, of which the columns `x` to `x + width` are wanted.
 * Returns 0 where it is not the only one, or not of Huffman codes in sequence.
 */
int lj_scan(struct lj *lj, size_t len, uint32_t x, uint32_t width, struct lj_scan *scan)
{
  const struct jpeg_decompress_struct *jpeg = &lj->jpeg;
  uint32_t unit, i;

  if (!lj->created || jpeg->progressive_mode || jpeg->arith_code || jpeg->Ss != 0 || jpeg->Se != 63 ||
      jpeg->comps_in_scan != jpeg->num_components || jpeg->unread_marker != 0 || width == 0 ||
      jpeg->src->bytes_in_buffer > len)
    return 0;
  scan->at = len - jpeg->src->bytes_in_buffer;
  scan->units = jpeg->MCUs_per_row;
  /* As jpeg_crop_scanline counts. */
  unit = (uint32_t)jpeg->min_DCT_scaled_size;
  if (jpeg->comps_in_scan > 1)
    unit *= (uint32_t)jpeg->max_h_samp_factor;
  scan->first = x / unit;
  scan->last = (x + width - 1) / unit;
  scan->restart = jpeg->restart_interval;
  scan->blocks = (uint32_t)jpeg->blocks_in_MCU;
  for (i = 0; i < scan->blocks; i++) {
    const jpeg_component_info *component = jpeg->cur_comp_info[jpeg->MCU_membership[i]];
    scan->block[i].component = (uint8_t)jpeg->MCU_membership[i];
    scan->block[i].dc = (uint8_t)component->dc_tbl_no;
    scan->block[i].ac = (uint8_t)component->ac_tbl_no;
    scan->block[i].dc_only = component->DCT_scaled_size == 1;
    if (component->dc_tbl_no >= NUM_HUFF_TBLS || component->ac_tbl_no >= NUM_HUFF_TBLS ||
        !copy_table(&scan->dc[component->dc_tbl_no], jpeg->dc_huff_tbl_ptrs[component->dc_tbl_no]) ||
        !copy_table(&scan->ac[component->ac_tbl_no], jpeg->ac_huff_tbl_ptrs[component->ac_tbl_no]))
      return 0;
  }
  return 1;
}

static boolean read_unit(j_decompress_ptr jpeg, JBLOCKROW *blocks)
{
  struct lj *lj = of((j_common_ptr)jpeg);
  if (!lj->gave_up && !(*lj->unit)(lj->state, blocks))
    lj->gave_up = TRUE;
  /* To libjpeg it looks as if the rest of the file had yet to arrive. */
  return !lj->gave_up;
}

/*
 * Skips to row `y` and decodes `rows` rows to `out`, `stride` bytes apart; `out` holds `len` bytes.
 * Units are read by `unit`, unless that is null, for a scan that lj_scan has described. Where it can't,
 * the result is GAVE_UP, and the file has to be opened anew.
 */
int lj_rows(struct lj *lj, uint32_t y, uint32_t rows, unsigned char *out, size_t stride, size_t len,
            lj_unit *unit, void *state)
{
  struct jpeg_decompress_struct *jpeg = &lj->jpeg;
  JSAMPROW row[16];
  JDIMENSION end, count, i;
  size_t line;

  if (setjmp(lj->jump))
    return failed(lj);
  if (!lj->created)
    fail(lj, "no file is open");
  line = (size_t)jpeg->output_width * (size_t)jpeg->output_components;
  if (line > stride || (rows != 0 && (size_t)(rows - 1) > (SIZE_MAX - line) / stride) ||
      (rows != 0 && (size_t)(rows - 1) * stride + line > len) || y > jpeg->output_height ||
      rows > jpeg->output_height - y || y < jpeg->output_scanline)
    fail(lj, "rows were asked for that are not there");
  lj->gave_up = FALSE;
  if (unit != NULL) {
    lj->unit = unit;
    lj->state = state;
    jpeg->entropy->decode_mcu = read_unit;
  }
  end = y + rows;
  if (y > jpeg->output_scanline)
    (void)jpeg_skip_scanlines(jpeg, y - jpeg->output_scanline);
  while (jpeg->output_scanline < end && !lj->gave_up) {
    count = end - jpeg->output_scanline;
    if (count > 16)
      count = 16;
    for (i = 0; i < count; i++)
      row[i] = out + (size_t)(jpeg->output_scanline - y + i) * stride;
    if (jpeg_read_scanlines(jpeg, row, count) == 0 && !lj->gave_up)
      fail(lj, "it ends early");
  }
  if (lj->gave_up) {
    (void)failed(lj);
    return GAVE_UP;
  }
  return 0;
}
