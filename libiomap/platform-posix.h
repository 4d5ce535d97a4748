/*
 * platform-posix.h - the types behind platform.h on a POSIX system
 */
#ifndef IOMAP_PLATFORM_POSIX_H
#define IOMAP_PLATFORM_POSIX_H

#include <pthread.h>
#include <stdint.h>
#include "lockdep.h"

struct mutex { pthread_mutex_t m; enum lock_rank rank; };
struct rwsem { pthread_rwlock_t l; enum lock_rank rank; };
struct cond { pthread_cond_t c; };
struct thread { pthread_t id; void (*fn)(void *arg); void *arg; char name[16]; };
struct tls_key { uint64_t id; void (*exit)(void *owner, void *value); void *owner; struct tls_key *next; };

typedef struct plat_aio *plat_aio_t;
struct plat_aio_event { void *tag; int64_t result; };   /* bytes or -errno */

#endif
