/*
 * bdi.h - a backing device: what all files on one disk share
 *
 * Plain files share one per st_dev, an engine's device has its own. It holds the exact counters (every change of block bits
 * lands in them under the folio's state lock), the lists of dirty inodes with the flusher thread that works on them, the
 * measured bandwidth, and the request slots that bound what is in flight.
 */
#ifndef IOMAP_BDI_H
#define IOMAP_BDI_H

#include "device.h"
#include "ifs.h"
#include "list.h"
#include "platform.h"
#include "throttle-math.h"

enum wb_level { WB_DIRTY, WB_WRITEBACK, WB_PINNED, WB_FAILED, WB_DONTCACHE, WB_LEVELS };
enum wb_total {
	WB_DIRTIED, WB_REDIRTIED, WB_SUBMITTED, WB_WRITTEN, WB_WRITE_FAILED, WB_CANCELLED,
	WB_PIN_ACQUIRED, WB_PIN_RELEASED, WB_PIN_DROPPED, WB_TOTALS
};

/* Highest levels so far, one set a cache; raised by whoever raised the level. */
struct wb_peaks { _Atomic uint64_t dirty, pinned, dirty_folio; };

/* Levels and totals over all backing devices of one cache. */
struct wb_sums { _Atomic int64_t level[WB_LEVELS]; _Atomic uint64_t total[WB_TOTALS]; };

/*
 * wb: bdi_writeback. Plain files': from the first of them to the cache's end, as the measured bandwidth stays worth knowing. An
 * engine's device: until no inode uses it.
 */
struct wb {
	/* fixed */
	struct list all;                        /* on the cache's list; its inode_lock */
	struct zone *zone;
	struct wb_peaks *peaks;
	struct wb_sums *sums;
	void *owner;                            /* the cache, for flusher.c */
	dev_t dev;                              /* plain files: st_dev */
	struct iomap_device *device;            /* an engine's device; NULL for plain files */
	struct aio_queue *aio;                  /* plain files' queue, else NULL */
	unsigned depth;
	_Atomic unsigned nr_inodes;             /* inodes on it */
	/* accounting: changed under some folio's state lock */
	_Alignas(64) _Atomic int64_t level[WB_LEVELS];
	_Atomic uint64_t total[WB_TOTALS];
	/* list_lock: dirty inodes and work */
	_Alignas(64) struct mutex list_lock;    /* LOCK_WB_LIST */
	struct list dirty, io, more_io;         /* inodes: newest first; the batch, next at the tail; parked */
	struct cond work_cond;                  /* the flusher sleeps here */
	bool background_wanted;                 /* somebody crossed a threshold */
	bool running;                           /* the flusher is at work */
	bool stop;
	uint64_t requested_bytes;               /* somebody needs memory: write so much */
	bool behind_wanted;                     /* a DONTCACHE write left something dirty: write all that such writes did */
	uint64_t start_at_ns;                   /* when to look for that, and for ranges somebody wants started; 0: nothing to do */
	unsigned start_tries;                   /* looks that moved nothing, one after the other */
	uint64_t last_old_flush_ns;
	uint64_t next_retry_ns;                 /* failed blocks of some inode are due; 0: none */
	struct thread flusher;
	bool has_flusher;
	unsigned assistants;                    /* helpers at work here; the cache's helper_lock */
	/* depth_lock: request slots */
	_Alignas(64) struct mutex depth_lock;   /* LOCK_DEVICE */
	struct cond depth_cond;                 /* a request of this device completed */
	struct list free_ioends;
	void *ioend_memory;
	size_t ioend_bytes;
	uint64_t completions;                   /* requests that ended, of any kind */
	unsigned depth_waiters;
	unsigned outstanding;                   /* requests given out whose completion has not called wb_completed() */
	/* bw_lock: the control loop's view */
	_Alignas(64) struct mutex bw_lock;      /* LOCK_LEAF */
	struct wb_rate rate;
	struct fprop_local share;
	_Atomic bool dirty_exceeded;
	/* what failed */
	_Atomic uint64_t last_good_ns;          /* when a write last ended well, or when the first failed after that went in */
	_Atomic int last_error;
};

int  wb_create(struct zone *zone, struct wb_peaks *peaks, struct wb_sums *sums, unsigned depth, struct wb **out);
void wb_destroy(struct wb *wb);                 /* flusher stopped; waits for requests in flight */
/* Adds @c to the counters. State lock of the folio held. */
void wb_account(struct wb *wb, const struct charge *c);
static inline uint64_t wb_level(const struct wb *wb, enum wb_level l)
{
	int64_t v = load_relaxed(&wb->level[l]);

	return v > 0 ? (uint64_t)v : 0;
}

/* Dirty and in flight: what the limits are about. In this order: a block that moves on is not missed. */
static inline uint64_t wb_owed(const struct wb *wb)
{
	uint64_t dirty = wb_level(wb, WB_DIRTY);

	return dirty + wb_level(wb, WB_WRITEBACK);
}

/* Gives all requests to the device, waiting for completions where its queue is full. No short lock held. */
void wb_submit(struct wb *wb, struct iomap_device *dev, struct iomap_request **reqs, unsigned n);
/* Offers a request that counts as given out already, once. False: the queue is full. @wb may be gone if it was taken. */
bool wb_offer_again(struct wb *wb, struct iomap_device *dev, struct iomap_request *req);
/* @n requests will end by wb_completed() that wb_submit() does not see. */
void wb_hand_out(struct wb *wb, unsigned n);
/*
 * One request given to wb_submit() or wb_flush() ended. The last thing its completion does: the wb may be gone
 * afterwards.
 */
void wb_completed(struct wb *wb);
bool wb_is_busy(struct wb *wb);                 /* some request of it is under way */
uint64_t wb_completions(struct wb *wb);
void wb_poke(struct wb *wb);                    /* wakes those waiters as a completion would */
/* Sleeps until a request of this device ends after @seen was read from wb_completions(), or until @when_ns. */
void wb_wait_completion(struct wb *wb, uint64_t seen, uint64_t when_ns);

/*
 * Reads or writes and sleeps until it is done, in as many requests as the device wants: bytes (a read's are short only at the device's
 * end, a write's where the rest failed) or -errno. Locks for reading or direct I/O may be held, no short ones.
 */
int64_t wb_iov(struct wb *wb, struct iomap_device *dev, unsigned op, uint64_t pos, struct iovec *iov, int nr);    /* @iov is used up */
int64_t wb_io(struct wb *wb, struct iomap_device *dev, unsigned op, uint64_t pos, void *buf, uint64_t len);
/* A flush, likewise: 0 or -errno. */
int  wb_flush(struct wb *wb, struct iomap_device *dev);

#endif
