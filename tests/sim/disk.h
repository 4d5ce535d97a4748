/*
 * disk.h - files behind the system calls: what a kernel and a disk may do to them
 *
 * The functions of platform.h that take a path or a descriptor, and plat_aio_*, are defined in disk.c. This is what the world
 * says and asks beside them.
 */
#ifndef IOMAP_SIM_DISK_H
#define IOMAP_SIM_DISK_H

#include <stdbool.h>
#include <stdint.h>
#include "sim.h"

#define SIM_SECTOR 512u

/* How the disk behaves in one world. */
struct sim_disk_params {
	uint32_t dio_align;                     /* 512 or 4096: what direct I/O must be aligned to */
	uint64_t capacity;                      /* bytes that may be allocated in all files together; 0: no limit (-ENOSPC beyond) */
	uint64_t latency_ns, latency_spread_ns; /* of a request: latency + 0 … spread; a few take 20 times as long */
	uint64_t event_spread_ns;               /* io_getevents tells of what has ended 0 … so much later */
	unsigned workers;                       /* requests it works on at one time, 1 … 4 */
	unsigned queue;                         /* requests it takes before io_submit says -EAGAIN */
	bool     can_allocate;                  /* fallocate works, else -EOPNOTSUPP */
	/* chances, each in 1024 per event */
	unsigned short_io;                      /* a request of several blocks transfers only some whole blocks, at least one */
	bool     short_bytes;                   /* … and through the page cache any bytes, else whole sectors */
	unsigned eagain;                        /* io_submit takes fewer than it could, perhaps none (-EAGAIN) */
	unsigned read_eio, write_eio, flush_eio, enospc;        /* requests that fail for no reason; enospc: fallocate, direct writes into holes */
	/* a range of one file that always fails, from virtual time bad_from_ns on; bad_len 0: none */
	unsigned bad_file;
	uint64_t bad_pos, bad_len, bad_from_ns;
	bool     bad_reads, bad_writes;
	uint64_t dead_from_ns;                  /* from then on every request and flush of every file is -EIO; 0: never */
	/* told when a write, a truncate or an allocation has made a file larger; NULL: nobody is */
	void (*grown)(unsigned file, uint64_t from, uint64_t to);
};

void disk_start(const struct sim_disk_params *p, uint64_t seed);        /* in a fresh world: no files; spawns its threads */
/* Number of the file at @path, in order of creation from 0; -ENOENT. */
int  disk_file(const char *path);
uint64_t disk_size(unsigned file);                      /* as fstat() would say now */
/* What a read through the page cache would show now; @len beyond the size reads as zeros. */
void disk_peek(unsigned file, uint64_t pos, void *buf, uint64_t len);
/* Changes what is there, at once, behind everybody's back; whole sectors inside the size. A power cut would not know of it. */
void disk_poke(unsigned file, uint64_t pos, const void *data, uint64_t len);
/* Makes a file with this content (NULL: a hole), all of it durable. Returns its number. */
unsigned disk_create(const char *path, const void *data, uint64_t len);
void disk_heal(void);                                   /* nothing fails any more, by chance or for good */
bool disk_idle(void);                                   /* no request in flight */

/* What a crash may leave. POWER: each sector written since the last flush old, new or one in between. KILL: only the process died. */
enum disk_crash { DISK_KILL, DISK_POWER_OLDEST, DISK_POWER_NEWEST, DISK_POWER_RANDOM };
/*
 * One legal image of @file if everything stopped now: its size returned, its first @max bytes in @buf. After sim_power_off() too,
 * until the next disk_start(). Requests in flight: each sector as before or as it is in memory now… what has been transferred so far.
 */
uint64_t disk_image(unsigned file, enum disk_crash how, struct sim_rng *r, void *buf, uint64_t max);

struct sim_disk_stats { uint64_t requests, sectors, flushes, short_ios, eagains, faults; };
void disk_stats(struct sim_disk_stats *out);

#endif
