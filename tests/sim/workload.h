/*
 * workload.h - what the threads of a world do
 */
#ifndef IOMAP_SIM_WORKLOAD_H
#define IOMAP_SIM_WORKLOAD_H

#include "disk.h"
#include "world.h"
#include <iomap/iomap.h>
#include "extfs.h"

#define WORLD_FILES     3
#define WORLD_THREADS   4
#define OP_BYTES        65536u          /* the most of one call */

enum op_kind {
	OP_WRITE, OP_READ, OP_APPEND, OP_TRUNCATE, OP_FSYNC, OP_FDATASYNC, OP_DONTNEED, OP_WILLNEED, OP_DROP, OP_SYNC, OP_LIMIT,
	OP_CHECK, OP_REOPEN, OP_SECOND_OPEN, OP_SLEEP, OP_STAT, OP_RESOLVE,
	OP_DRAWN,                       /* what comes from here on takes the place of some that were drawn */
	OP_ADVISE = OP_DRAWN, OP_POLICY,
	OP_HOLES, OP_PUNCH = OP_HOLES, OP_ZERO, OP_ALLOCATE, OP_SEEK_DATA, OP_SEEK_HOLE, OP_SYNC_RANGE, OP_KINDS
};

struct op {
	enum op_kind kind;
	unsigned thread, file;
	uint64_t pos, len;
	int flags;                      /* IOMAP_RWF_*; OP_SYNC_RANGE: IOMAP_SYNC_* */
	bool keep_size;                 /* of OP_ZERO, OP_ALLOCATE */
	bool pieces;                    /* in several iovecs */
	unsigned skew;                  /* the buffer begins so far behind a page */
};

/* Everything that a seed decides before the first step. */
struct plan {
	struct iomap_cache_params cache;
	struct sim_disk_params disk;
	unsigned nr_files, nr_threads, nr_ops;
	struct { uint32_t block; uint64_t size; bool unstable; } file[WORLD_FILES];
	struct op op[WORLD_OPS];
	/* an engine's files: some of them lie on one device, mapped by extfs */
	bool engine, on_engine[WORLD_FILES];
	struct extfs_params extfs;
	bool cloned;                    /* their first blocks are shared with a copy that nobody opens */
	struct { int error; uint64_t from, to; unsigned skip, times; } engine_fault[EXTFS_POINTS];
	unsigned fail_chance[SIM_FAULTS];
	bool faults;                    /* something may fail */
	bool idle_end;                  /* before the last fsync the flusher is left to write everything */
	bool nothing_behind;            /* all reads are DONTCACHE: at the end nothing is cached that such an operation made and used */
	uint64_t power_off_at;
};

void plan_make(const struct world_spec *spec, struct plan *p);
void plan_make_script(struct plan *p);
void op_describe(const struct op *op, char *buf, size_t len);

#endif
