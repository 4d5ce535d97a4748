/*
 * world.h - one run: what is made of a seed, and what became of it
 */
#ifndef IOMAP_SIM_WORLD_H
#define IOMAP_SIM_WORLD_H

#include "sched.h"

#define WORLD_OPS 512                   /* at most, of all threads */

struct world_spec {
	uint64_t seed;                  /* parameters and operations */
	uint64_t schedule;              /* interleaving, disk, faults; 0: as the seed */
	unsigned threads;               /* that work; 0: by seed */
	bool crash, faults;             /* the power goes at some step; things fail */
	bool trace;
	const bool *left_out;           /* WORLD_OPS flags, or NULL: operations not done */
	/* sweeps: a script in place of random operations, one fault */
	bool script;
	uint64_t power_off_at;          /* step; 0: as the plan says */
	uint64_t fail_nth[SIM_FAULTS];
};

struct world_result {
	struct sim_result sim;
	unsigned ops, threads;          /* done */
	unsigned crashes, images;
	uint64_t faults;
	bool failed;
};

void world_run(const struct world_spec *spec, struct world_result *out);
/* How many operations the seed has, and one of them in words. */
unsigned world_ops(const struct world_spec *spec);
void world_describe(const struct world_spec *spec, unsigned op, char *buf, size_t len);

#endif
