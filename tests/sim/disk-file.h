/*
 * disk-file.h - files, descriptors and requests, as the files of the disk share them
 */
#ifndef IOMAP_SIM_DISK_FILE_H
#define IOMAP_SIM_DISK_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include "disk.h"
#include "disk-store.h"
#include "platform.h"

#define DISK_FILES      64
#define DISK_FDS        256
#define DISK_FD_FIRST   3

/* A lock on one byte, owned by an open file, not by a descriptor or a thread. */
struct disk_byte_lock {
	struct disk_byte_lock *next;
	const struct disk_open *owner;
	uint64_t pos;
	bool exclusive;
};

/* From its creation to the end of the world. */
struct disk_file {
	unsigned nr;
	const char *path;
	mode_t mode;
	struct disk_store store;
	struct disk_request *requests;  /* begun and not ended */
	struct disk_byte_lock *locks;
	bool truncating;                /* one thread is in ftruncate(): no request begins */
	struct sim_queue turn;          /* sleeps until that is over, or until the last request has ended */
};

/* An open file, which several descriptors may stand for. */
struct disk_open {
	struct disk_file *file;
	int flags;
	unsigned refs;
};

/* A read or write, from request_begin() to request_end(). */
struct disk_request {
	struct disk_request *next;      /* in file->requests */
	struct disk_file *file;
	bool write, direct;
	uint64_t pos, len, id;
	const struct iovec *iov;
	int iovcnt;
	/* of asynchronous ones */
	struct sim_aio *aio;
	void *tag;
};

struct disk {
	struct sim_disk_params params;
	struct sim_disk_stats stats;
	struct sim_rng timing, faults;
	struct disk_pool pool;
	uint64_t last_id;               /* given to a write or truncation */
	struct disk_file *files[DISK_FILES];
	unsigned nr_files;
	struct disk_open *fds[DISK_FDS];
	unsigned nr_requests;           /* begun and not ended, in all files */
	struct disk_request **queue;    /* asynchronous ones that no worker has taken */
	unsigned nr_queued, queue_room;
	struct sim_queue work;          /* workers without any */
};

extern struct disk *disk;               /* of this world */

struct disk_open *disk_open_of(int fd); /* NULL: no such descriptor */
bool disk_may_read(const struct disk_open *o);
bool disk_may_write(const struct disk_open *o);
bool disk_is_dead(void);
/* Sleeps while the file is being truncated. */
void disk_enter(struct disk_file *f);
/* The file had size @from; if it is larger now, tells params.grown. */
void disk_grown(const struct disk_file *f, uint64_t from);
/* Whether the disk cannot give @units more, in truth or by a fault; asks for one only if @units is not 0. */
bool disk_no_space(uint64_t units);

/* @r->iov may be the caller's as long as the request lives. Sleeps while the file is being truncated. */
void request_begin(struct disk_request *r);
int64_t request_run(struct disk_request *r);            /* bytes or -errno; takes its time */
void request_end(struct disk_request *r, int64_t result);
void request_start_workers(void);

#endif
