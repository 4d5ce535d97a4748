/*
 * extfs.h - a tiny extent filesystem: several files on one device, mapped for the cache by <iomap/ops.h>
 *
 * It does what real ones do to a cache: holes, delayed allocation with reserved blocks, preallocated blocks that read as zeros,
 * small files inside the metadata, extents shared by clones and copied when written, mappings that go stale under a long write.
 * Metadata is in memory; what it promises is checked by extfs_check().
 *
 * It also watches the cache: what breaks the contract of ops.h is kept in words by extfs_bad(), the first one. Blocks that become
 * free are filled with EXTFS_POISON, and so is the device at first, so a read from a wrong place shows.
 *
 * The same code runs in the tests and in the simulator: no allocation after extfs_create() and extfs_add(), one lock, of platform.h.
 */
#ifndef TESTS_EXTFS_H
#define TESTS_EXTFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <iomap/ops.h>

struct extfs;
struct extfs_file;

#define EXTFS_POISON    0xDB
#define EXTFS_FILES     8               /* at most */

/* extfs_params.flags */
#define EXTFS_EARLY             (1U << 0)       /* a write into a hole takes its blocks at once, unwritten … */
#define EXTFS_EARLY_NEW         (1U << 1)       /* … and answers IOMAP_MAPPED with IOMAP_F_NEW */
#define EXTFS_ALWAYS_COW        (1U << 2)       /* all writes go elsewhere: a hole stays one until its bytes are on the device */
#define EXTFS_CHOP              (1U << 3)       /* answers less than it could, now and then */
#define EXTFS_COW_UNWRITTEN     (1U << 4)       /* copies are IOMAP_UNWRITTEN at writeback, too */

/* Where it can be stopped or made to fail. */
enum extfs_point {
	EXTFS_BEGIN,                    /* iomap_begin(); the hook is called when the answer is made */
	EXTFS_MAP,                      /* writeback_range() */
	EXTFS_SUBMIT,
	EXTFS_END_IO,
	EXTFS_COMMIT,
	EXTFS_BAD_MAP,                  /* does not fail: writeback_range() hands on an IOMAP_DELALLOC */
	EXTFS_VALID,                    /* cannot fail; the hook is called when iomap_valid() knows its answer, with a folio locked */
	EXTFS_POINTS
};

struct extfs_params {
	uint64_t size;                  /* bytes of the device */
	uint32_t block;                 /* of the file system and all its files */
	uint32_t inline_max;            /* files of up to so many bytes live in the metadata; < block */
	uint32_t extent_max;            /* blocks that one allocation gets at most, 0 = no limit */
	uint32_t boundary;              /* in blocks: no request crosses a multiple of it on the device; 0 = none */
	unsigned flags;                 /* EXTFS_* */
	uint64_t seed;
	/* the device by another door; without poke there are neither inline files nor poison */
	void (*poke)(void *priv, uint64_t addr, const void *buf, uint64_t len);
	void (*peek)(void *priv, uint64_t addr, void *buf, uint64_t len);
	/* called at each point, for a write of the cache or for its writeback, with no lock held; may be NULL */
	void (*hook)(void *priv, enum extfs_point point, struct extfs_file *file, uint64_t pos, uint64_t len);
	void *priv;                     /* of all three */
};

struct extfs *extfs_create(const struct extfs_params *params);  /* NULL: no memory */
void extfs_free(struct extfs *fs);                      /* no file of it is open in a cache */

extern const struct iomap_ops extfs_ops;
extern const struct iomap_writeback_ops extfs_writeback_ops;

struct extfs_file *extfs_add(struct extfs *fs, const char *name);      /* NULL: too many, no memory; the pointer is ops_priv */
struct extfs_file *extfs_lookup(struct extfs *fs, const char *name);
const char *extfs_name(const struct extfs_file *file);
void extfs_remove(struct extfs_file *file);             /* it is not open */
uint64_t extfs_size(struct extfs_file *file);           /* the one that a crash would show */
/* What the cache has or had last: iomap_file_params.size, as a closed file's last bytes may still be on their way. */
uint64_t extfs_open_size(struct extfs_file *file);

/*
 * @dst becomes a copy of @src, the blocks shared. The cache has nothing of either but what is on the device.
 * -EBUSY: something is delayed or under way.
 */
int extfs_clone(struct extfs_file *src, struct extfs_file *dst);
/* The bytes that are on the device or in the metadata, zeros where nothing was written; needs peek. */
void extfs_peek(struct extfs_file *file, void *buf, uint64_t len, uint64_t pos);
/* Fills [pos, pos + len) behind the cache's back, before anybody opens the file. -ENOSPC. */
int extfs_poke(struct extfs_file *file, const void *buf, uint64_t len, uint64_t pos);

/* Calls of @point fail that touch [from, to): after @skip of them, @times (0: always). One rule for each point; error 0 takes it away. */
void extfs_fail(struct extfs *fs, enum extfs_point point, int error, uint64_t from, uint64_t to, unsigned skip, unsigned times);

struct extfs_stat {
	uint64_t free, reserved;        /* bytes: nobody's; promised to delayed extents, part of free */
	uint64_t delayed, unwritten, mapped, shared, copies;    /* bytes of all files by kind; copies: not the file's yet */
	uint64_t extents, inline_files;
	uint64_t begins, ends, stale, submits, end_ios, commits;        /* calls; stale: answers "no longer valid" */
	unsigned open, in_flight;       /* begins without their end, requests */
};

void extfs_stat(struct extfs *fs, struct extfs_stat *out);
void extfs_file_stat(struct extfs_file *file, struct extfs_stat *out);  /* only what is by file */
/* Blocks neither lost nor in two places, counts as they are; @quiet: also that no call and no request is under way. */
bool extfs_check(struct extfs *fs, bool quiet, char *why, size_t len);
const char *extfs_bad(struct extfs *fs);                /* the first broken rule of ops.h in words, or NULL */

/* What writeback_range() does before it hands on: makes wpc->iomap map @pos. For tests that play the cache. */
int extfs_map(struct iomap_writepage_ctx *wpc, uint64_t pos, uint64_t len);

#endif
