/*
 * file.h - one open handle (the public face is <iomap/file.h>)
 */
#ifndef IOMAP_FILE_PRIVATE_H
#define IOMAP_FILE_PRIVATE_H

#include <iomap/file.h>
#include "inode.h"
#include "readahead.h"

/* From iomap_open() to iomap_close(). */
struct iomap_file {
	/* fixed */
	struct inode *inode;
	struct iomap_cache *cache;
	bool readable, writable, append, dsync, sync;
	struct file_ra ra;
	_Atomic bool noreuse;                   /* fadvise(NOREUSE): its reads tell reclaim nothing */
	_Atomic uint64_t behind_pos;            /* where its last DONTCACHE read ended; UINT64_MAX: there was none */
	/* error cursor */
	struct mutex error_lock;                /* LOCK_LEAF */
	uint32_t since;
#ifdef IOMAP_DEBUG
	_Atomic bool closed;                    /* kept for a while, so that who uses it again is found */
#endif
};

/* Checked builds abort here if @file is one of the last FILES_KEPT that were closed in its cache. */
void file_check_open(const struct iomap_file *file);
/* What this handle has not yet been told of failed writes: KEEP_DIRTY: while a block is failed; DROP: once. */
int file_write_error(struct iomap_file *file);

#endif
