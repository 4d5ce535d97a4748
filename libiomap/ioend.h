/*
 * ioend.h - one write request of the cache: which blocks of which folios it carries
 *
 * State       what is true                                                        who moves it on
 * free        on its backing device's list of free ones                           ioend_tryget(), ioend_start()
 * open        belongs to one pass, which may still append to it                   ioend_add(), ioend_close()
 * submitted   the device's; blocks in flight, folios referenced                    ioend_close() … device
 * done        completion ends writeback block by block, then frees it             the device's completion
 */
#ifndef IOMAP_IOEND_H
#define IOMAP_IOEND_H

#include "inode.h"

#define IOEND_PIECES 128

struct ioend {
	struct iomap_request req;
	struct list node;                       /* free: its backing device's depth_lock; came back short: reclaim's thread_lock */
	struct inode *inode;
	struct io_wait *wait;                   /* or NULL */
	uint64_t pos, len;                      /* in the file; len: exact, may end inside the file's last block */
	uint64_t addr;                          /* of pos, on the device */
	struct iomap_ioend seen;                /* what an engine is shown of it */
	uint64_t done;                          /* bytes in front that are written: it came back short */
	unsigned tries;                         /* times it came back short */
	uint64_t flush_failures;                /* the inode's when it was made */
	void *copy;                             /* contents in the copy pool, or NULL: folio memory is read in place */
	unsigned nr;
	struct { struct iomap_folio *folio; uint16_t first, nr; } piece[IOEND_PIECES];
	struct iovec iov[IOEND_PIECES];
};

int  ioend_pool_init(struct wb *wb);                    /* depth of them, so that writing needs no memory; -ENOMEM */
struct ioend *ioend_tryget(struct wb *wb);              /* NULL: all in use */
void ioend_start(struct ioend *io, struct inode *inode, uint64_t pos, uint64_t addr, unsigned flags, struct io_wait *wait);
/* May the block at @pos of the same inode, stored at @addr, be appended? @flags: IOMAP_IOEND_*. */
bool ioend_takes(const struct ioend *io, uint64_t pos, uint64_t addr, unsigned flags, uint64_t max_bytes);
/*
 * Appends @len bytes in blocks [first, first + nr) of @f, which are in flight; takes a reference and a stable
 * hold.
 */
void ioend_add(struct ioend *io, struct iomap_folio *f, unsigned first, unsigned nr, uint64_t len);
/* Makes the request ready for the device, copied where it is small and there is room, and contents are to be stable. */
void ioend_close(struct ioend *io);

/* Ends one that never went to the device. No short lock held. */
void ioend_fail(struct ioend *io, int error);
/* After its engine's end_io(): blocks leave flight, the slot is free. */
void ioend_finish(struct ioend *io, int error);
/* Blocks [first, first + nr) of @f, in flight but in no request, leave flight: written by nobody (0: they needed none), or failed. */
void ioend_skip(struct inode *inode, struct iomap_folio *f, unsigned first, unsigned nr, int error);

/* Gives the rest of one that came back short to its device again. False: its queue is full, try later. */
bool ioend_resubmit(struct ioend *io);

/* Sleeps until no block of the inode is in flight. */
void ioend_wait_idle(struct inode *inode);

#endif
