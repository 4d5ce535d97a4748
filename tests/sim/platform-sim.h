/*
 * platform-sim.h - the types behind platform.h in the simulator
 */
#ifndef IOMAP_PLATFORM_SIM_H
#define IOMAP_PLATFORM_SIM_H

#include <stdint.h>
#include "lockdep.h"
#include "sim.h"

struct mutex { struct sim_thread *owner; enum lock_rank rank; struct sim_queue queue; };
struct rwsem {
	struct sim_thread *owner;               /* the writer */
	unsigned readers, writers_waiting;
	enum lock_rank rank;
	struct sim_queue queue;
};
struct cond { struct sim_queue queue; };
struct thread { struct sim_thread *t; void (*fn)(void *arg); void *arg; struct sim_queue joiner; bool ended; };
struct tls_key { uint64_t id; void (*exit)(void *owner, void *value); void *owner; };

typedef struct sim_aio *plat_aio_t;
struct plat_aio_event { void *tag; int64_t result; };   /* bytes or -errno */

#endif
