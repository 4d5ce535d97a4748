/*
 * ops.h - engines that map blocks themselves
 *
 * Without these, byte n of a file is byte n of its device. An engine that keeps many files on one device, allocates late,
 * shares extents or rewrites them elsewhere tells the cache where bytes are by iomap_begin(), and decides at writeback where they
 * go by writeback_range(). Names and meanings are Linux's; docs/engines.md has the contract as a table.
 *
 * No callback may use a file of the cache that calls it. Each gets the ops_priv that the file was opened with.
 */
#ifndef IOMAP_PUBLIC_OPS_H
#define IOMAP_PUBLIC_OPS_H

#include <iomap/device.h>

#ifdef __cplusplus
extern "C" {
#endif

struct iomap_folio;     /* one piece of cached memory */

/* iomap.type: what is stored for a range of a file. */
enum iomap_type {
	IOMAP_HOLE = 0,                 /* nothing: reads as zeros */
	IOMAP_DELALLOC,                 /* nothing yet, but space is set aside: reads as zeros, gets its place at writeback */
	IOMAP_MAPPED,                   /* bytes at addr */
	IOMAP_UNWRITTEN,                /* a place at addr that nobody has written: reads as zeros */
	IOMAP_INLINE,                   /* bytes in inline_data, in the engine's own metadata */
};

/* iomap.flags, set by the engine. An unknown one is an error of the engine: -EIO. */
#define IOMAP_F_NEW             (1U << 0)       /* allocated just now: what is not written of a block must become zeros */
#define IOMAP_F_DIRTY           (1U << 1)       /* the engine's metadata must be committed before the data can be found */
#define IOMAP_F_SHARED          (1U << 2)       /* others have these blocks too: a write goes elsewhere (srcmap says what was) */
#define IOMAP_F_MERGED          (1U << 3)       /* several extents in one answer; means nothing to the cache */
#define IOMAP_F_XATTR           (1U << 4)       /* means nothing to the cache */
#define IOMAP_F_BOUNDARY        (1U << 5)       /* no write request goes on from an earlier mapping into this one */
#define IOMAP_F_PRIVATE         (1U << 12)      /* the engine's own */
/* … and by the cache, for iomap_end() to see. */
#define IOMAP_F_SIZE_CHANGED    (1U << 8)       /* the file grew */
#define IOMAP_F_STALE           (1U << 9)       /* it was no longer valid and nothing was done with it */

#define IOMAP_NULL_ADDR         UINT64_MAX      /* no place on the device */

/* Where one range of a file is. Offsets and lengths are multiples of the file's block_size, but for the end of inline data. */
struct iomap {
	uint64_t addr;                  /* first byte on the device, a multiple of its block; or IOMAP_NULL_ADDR */
	uint64_t offset;                /* first byte of the file */
	uint64_t length;                /* bytes, > 0 */
	uint16_t type;                  /* enum iomap_type */
	uint16_t flags;                 /* IOMAP_F_* */
	struct iomap_device *device;    /* NULL: the file's. Another one is -EIO in this version */
	void *inline_data;              /* IOMAP_INLINE: length bytes, readable, and writable for IOMAP_WRITE, until iomap_end() */
	void *priv;                     /* the engine's, from begin to end */
	uint64_t validity_cookie;       /* the engine's: what iomap_valid() compares */
};

/* Why iomap_begin() is called; no flag: to read. */
#define IOMAP_WRITE             (1U << 0)       /* bytes will be written: allocate or reserve what they need */
#define IOMAP_ZERO              (1U << 1)       /* bytes will become zeros: a hole may stay one */
#define IOMAP_REPORT            (1U << 2)       /* somebody asks what is there */
#define IOMAP_DIRECT            (1U << 4)       /* around the cache: no IOMAP_DELALLOC */
#define IOMAP_NOWAIT            (1U << 5)       /* -EAGAIN instead of waiting */
#define IOMAP_UNSHARE           (1U << 7)       /* same bytes, to a place of their own */
#define IOMAP_DONTCACHE         (1U << 10)      /* the caller will not want them cached */

/* How an engine's file is mapped. All callbacks may sleep and may be called from any thread. */
struct iomap_ops {
	/*
	 * Fills @iomap with the mapping that holds @pos: offset <= pos < offset + length. @length bytes are wanted; more or
	 * less may be answered. For a write to shared or not yet copied blocks @iomap is where they will go and @srcmap (which comes as
	 * an IOMAP_HOLE, and stays one where there is no source) where their bytes are now.
	 *
	 * Context: for a write the file's lock is held exclusively, so there is one at a time; reads come in parallel, with
	 *          folio locks held.
	 * Return:  0, or a negative errno that ends the call: -ENOSPC, -EDQUOT, -EIO, …
	 */
	int (*iomap_begin)(void *ops_priv, uint64_t pos, uint64_t length, unsigned flags, struct iomap *iomap,
			   struct iomap *srcmap);
	/*
	 * Exactly once for each iomap_begin() that returned 0, also after errors: @written bytes from @pos were done, of @length, which
	 * is what was asked for as far as the mapping and its source hold. A reservation for what was not written is the engine's to
	 * give back: nothing of it is dirty unless it was before. May be NULL.
	 *
	 * Return:  0; or a negative errno, which is the call's if nothing was written.
	 */
	int (*iomap_end)(void *ops_priv, uint64_t pos, uint64_t length, int64_t written, unsigned flags, struct iomap *iomap);
	/*
	 * Is @iomap still true? Asked with the folio locked before anything is decided by it, because writeback may have moved or
	 * converted the blocks meanwhile. May be NULL: mappings never change but by writes.
	 */
	bool (*iomap_valid)(void *ops_priv, const struct iomap *iomap);
	/*
	 * The file gets a new size by iomap_ftruncate(): free what lies beyond, or note the new end. Nothing beyond it is cached
	 * or in flight. Locks: the file's, exclusively, so that nobody reads or writes. NULL: the size cannot be set (-EOPNOTSUPP).
	 */
	int (*set_size)(void *ops_priv, uint64_t size);
	/*
	 * iomap_fallocate(), on whole blocks: @mode FALLOC_FL_KEEP_SIZE: space for them; a size that grows comes by set_size().
	 * _PUNCH_HOLE | _KEEP_SIZE: they become holes, reservations for what is only dirty there go. Nothing of them is in flight; dirty
	 * blocks are given up if this returns 0, and stay what they are if not. Locks: as set_size, and of folios of the range. NULL:
	 * -EOPNOTSUPP; zero range writes zeros.
	 */
	int (*fallocate)(void *ops_priv, int mode, uint64_t pos, uint64_t length);
	/*
	 * fsync: the file's bytes are on stable media; now what is needed to find them again. @datasync: its size, but not its
	 * times. The engine flushes the device itself where it must. Locks: none. NULL: nothing to do.
	 */
	int (*commit)(void *ops_priv, bool datasync);
};

/* iomap_ioend.flags */
#define IOMAP_IOEND_SHARED      (1U << 0)       /* was a copy on write: from now on the file's bytes are here */
#define IOMAP_IOEND_UNWRITTEN   (1U << 1)       /* convert [offset, offset + size) to IOMAP_MAPPED */
#define IOMAP_IOEND_BOUNDARY    (1U << 2)       /* began at a mapping with IOMAP_F_BOUNDARY */

/* One write request of writeback, contiguous in the file and on the device. */
struct iomap_ioend {
	uint64_t offset;                /* first byte of the file */
	uint64_t size;                  /* bytes of the file; the last block may reach beyond its end */
	uint64_t addr;                  /* first byte on the device */
	unsigned flags;                 /* IOMAP_IOEND_* */
	int error;                      /* end_io(): 0, or why the bytes are not on the device */
	void *priv;                     /* iomap.priv of the first mapping */
	void *ops_priv;
};

/* One pass of writeback over a file. */
struct iomap_writepage_ctx {
	struct iomap iomap;             /* the mapping that writeback_range() filled last; length 0: none */
	void *ops_priv;
	uint64_t size;                  /* the file's, when the blocks were taken */
	void *wb_ctx;                   /* the library's */
};

/* Where dirty bytes go. */
struct iomap_writeback_ops {
	/*
	 * Blocks [pos, pos + len) are in flight. Make sure that wpc->iomap maps the first of them, allocating if need be, and hand it on:
	 * return iomap_add_to_ioend(wpc, folio, pos, end_pos, len). A pass keeps wpc->iomap from call to call; whether it still
	 * holds is the engine's to know. @end_pos: the file's end; bytes at and beyond it are zeros.
	 *
	 * Context: one pass of a file at a time or several; no lock held. Neither truncate nor punch frees blocks in flight.
	 * Return:  what iomap_add_to_ioend() did; or a negative errno: these blocks fail, innocent neighbours are written.
	 */
	ssize_t (*writeback_range)(struct iomap_writepage_ctx *wpc, struct iomap_folio *folio, uint64_t pos, uint64_t len,
				   uint64_t end_pos);
	/*
	 * The last word before a request goes to the device. May be NULL.
	 *
	 * Return:  0; or a negative errno with which the request ends unsent.
	 */
	int (*writeback_submit)(struct iomap_writepage_ctx *wpc, struct iomap_ioend *ioend);
	/*
	 * The request has ended, well or not (ioend->error); its blocks are still in flight, so an fsync waits for this. Convert
	 * unwritten blocks, point the file at its copies, raise the size that a crash may show to offset + size; or drop what was allocated.
	 * May be NULL.
	 *
	 * Context: a thread of the library's that does nothing else; one call at a time in a cache.
	 * Return:  0; or a negative errno: the blocks count as not written.
	 */
	int (*end_io)(struct iomap_ioend *ioend);
};

/**
 * iomap_add_to_ioend - put blocks in flight into a write request
 * @wpc:     as given to writeback_range(), its iomap mapping @pos
 * @folio:   as given
 * @pos:     first byte
 * @end_pos: as given
 * @len:     bytes that may be taken
 *
 * Takes as much of the range as wpc->iomap covers. IOMAP_MAPPED and IOMAP_UNWRITTEN become part of a request; an IOMAP_HOLE is
 * passed over without being written.
 *
 * Context: from writeback_range() only.
 * Return:  bytes taken, > 0; or -EIO (the mapping does not hold @pos, or is of another type).
 * Kernel:  iomap_add_to_ioend().
 */
IOMAP_API ssize_t iomap_add_to_ioend(struct iomap_writepage_ctx *wpc, struct iomap_folio *folio, uint64_t pos, uint64_t end_pos,
				     uint64_t len);

#ifdef __cplusplus
}
#endif
#endif
