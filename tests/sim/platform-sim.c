/*
 * platform-sim.c - platform.h on the simulator: locks, threads, per-thread storage, time, memory
 *
 * Files are disk.c's. A lock that is let go is free for whoever comes first; one sleeper is woken to compete for it.
 */
#include <errno.h>
#include <string.h>
#include "atomic.h"
#include "bug.h"
#include "platform-sim.h"
#include "platform.h"
#include "sched.h"
#include "util.h"

/* --- locks ------------------------------------------------------------------------------------------------ */

struct lockdep_stack *plat_lockdep_stack(void) { return sim_local(sim_self())->locks; }

void mutex_init(struct mutex *m, enum lock_rank rank) { *m = (struct mutex){ .rank = rank }; }

void mutex_fini(struct mutex *m)
{
	if (m->owner || !sim_queue_empty(&m->queue))
		sim_fail("a mutex of rank %d ends in use", (int)m->rank);
	memset(m, 0xd7, sizeof(*m));
}

static void take(struct mutex *m)
{
	while (m->owner)
		sim_wait(&m->queue, "mutex", m);
	m->owner = sim_self();
}

static void let_go(struct mutex *m)
{
	if (m->owner != sim_self())
		sim_fail("a mutex of rank %d is unlocked by who does not hold it", (int)m->rank);
	m->owner = NULL;
	sim_wake_one(&m->queue);
}

void mutex_lock(struct mutex *m)
{
	lockdep_acquire(m->rank, m, 0, false);
	sim_point();
	take(m);
}

bool mutex_trylock(struct mutex *m)
{
	sim_point();
	if (m->owner)
		return false;
	m->owner = sim_self();
	lockdep_acquire(m->rank, m, 0, true);
	return true;
}

void mutex_unlock(struct mutex *m)
{
	lockdep_release(m);
	let_go(m);
	sim_point();
}

void rwsem_init(struct rwsem *s, enum lock_rank rank) { *s = (struct rwsem){ .rank = rank }; }

void rwsem_fini(struct rwsem *s)
{
	if (s->owner || s->readers || !sim_queue_empty(&s->queue))
		sim_fail("a rwsem of rank %d ends in use", (int)s->rank);
	memset(s, 0xd7, sizeof(*s));
}

void rwsem_lock_shared(struct rwsem *s)
{
	lockdep_acquire(s->rank, s, 0, false);
	sim_point();
	while (s->owner || s->writers_waiting)
		sim_wait(&s->queue, "rwsem, shared", s);
	s->readers++;
}

bool rwsem_trylock_shared(struct rwsem *s)
{
	sim_point();
	if (s->owner || s->writers_waiting)
		return false;
	s->readers++;
	lockdep_acquire(s->rank, s, 0, true);
	return true;
}

void rwsem_unlock_shared(struct rwsem *s)
{
	lockdep_release(s);
	if (!s->readers)
		sim_fail("a rwsem of rank %d is let go by more readers than it has", (int)s->rank);
	if (--s->readers == 0)
		sim_wake_all(&s->queue);
	sim_point();
}

void rwsem_lock(struct rwsem *s)
{
	lockdep_acquire(s->rank, s, 0, false);
	sim_point();
	s->writers_waiting++;
	while (s->owner || s->readers)
		sim_wait(&s->queue, "rwsem", s);
	s->writers_waiting--;
	s->owner = sim_self();
}

bool rwsem_trylock(struct rwsem *s)
{
	sim_point();
	if (s->owner || s->readers)
		return false;
	s->owner = sim_self();
	lockdep_acquire(s->rank, s, 0, true);
	return true;
}

void rwsem_unlock(struct rwsem *s)
{
	lockdep_release(s);
	if (s->owner != sim_self())
		sim_fail("a rwsem of rank %d is unlocked by who does not hold it", (int)s->rank);
	s->owner = NULL;
	sim_wake_all(&s->queue);
	sim_point();
}

void cond_init(struct cond *c) { *c = (struct cond){ .queue = { NULL, NULL } }; }

void cond_fini(struct cond *c)
{
	if (!sim_queue_empty(&c->queue))
		sim_fail("a condition ends while somebody waits for it");
	memset(c, 0xd7, sizeof(*c));
}

bool cond_wait_until(struct cond *c, struct mutex *m, uint64_t when_ns)
{
	bool woken;

	lockdep_release(m);
	might_sleep();
	let_go(m);              /* no point up to the sleep: a signal in between would be lost */
	woken = sim_wait_until(&c->queue, "condition", c, when_ns > sim_now() ? when_ns : sim_now());
	take(m);
	lockdep_acquire(m->rank, m, 0, false);
	return woken;
}

void cond_wait(struct cond *c, struct mutex *m) { cond_wait_until(c, m, UINT64_MAX); }

void cond_signal(struct cond *c)
{
	sim_wake_one(&c->queue);
	sim_point();
}

void cond_broadcast(struct cond *c)
{
	sim_wake_all(&c->queue);
	sim_point();
}

void plat_relax(unsigned spins)
{
	(void)spins;
	sim_yield();
}

/* --- threads ---------------------------------------------------------------------------------------------- */

static void thread_main(void *arg)
{
	struct thread *t = arg;

	t->fn(t->arg);
	sim_thread_exit();      /* before the joiner goes on, as with pthreads */
	t->ended = true;
	sim_wake_all(&t->joiner);
}

int thread_create(struct thread *t, const char *name, void (*fn)(void *arg), void *arg)
{
	*t = (struct thread){ .fn = fn, .arg = arg };
	sim_point();
	if (sim_fault(SIM_FAULT_THREAD))
		return -EAGAIN;
	t->t = sim_spawn(name, thread_main, t, true);
	sim_point();
	return t->t ? 0 : -EAGAIN;
}

void thread_join(struct thread *t)
{
	might_sleep();
	while (!t->ended)
		sim_wait(&t->joiner, "end of a thread", t);
}

unsigned plat_cpus(void) { return 2; }

/* --- per-thread storage ----------------------------------------------------------------------------------- */

static struct {
	struct tls_key *live[16];
	uint64_t last_id;
	unsigned exiting;               /* exit functions that run */
	struct sim_queue idle;
} keys;

void platform_sim_start(void)
{
	memset(&keys, 0, sizeof(keys));
}

void tls_init(struct tls_key *k, void (*exit)(void *owner, void *value), void *owner)
{
	*k = (struct tls_key){ .id = ++keys.last_id, .exit = exit, .owner = owner };
	for (unsigned i = 0; i < ARRAY_SIZE(keys.live); i++) {
		if (!keys.live[i]) {
			keys.live[i] = k;
			return;
		}
	}
	sim_fail("too many keys for per-thread storage");
}

void tls_fini(struct tls_key *k)
{
	lockdep_assert_none_held();
	sim_point();
	while (keys.exiting)
		sim_wait(&keys.idle, "exit of a thread", k);
	for (unsigned i = 0; i < ARRAY_SIZE(keys.live); i++)
		if (keys.live[i] == k)
			keys.live[i] = NULL;
}

void *tls_get(const struct tls_key *k)
{
	const struct sim_local *l = sim_local(sim_self());

	for (unsigned i = 0; i < SIM_TLS; i++)
		if (l->tls[i].key == k->id)
			return l->tls[i].value;
	return NULL;
}

static struct tls_key *live_key(uint64_t id)
{
	for (unsigned i = 0; i < ARRAY_SIZE(keys.live); i++)
		if (keys.live[i] && keys.live[i]->id == id)
			return keys.live[i];
	return NULL;
}

int tls_set(struct tls_key *k, void *value)
{
	struct sim_local *l = sim_local(sim_self());
	int room = -1;

	for (int i = 0; i < SIM_TLS; i++) {
		if (l->tls[i].key == k->id) {
			l->tls[i].value = value;
			return 0;
		}
		if (room < 0 && !live_key(l->tls[i].key))
			room = i;
	}
	if (room < 0 || sim_fault(SIM_FAULT_ALLOC))
		return -ENOMEM;
	l->tls[room].key = k->id;
	l->tls[room].value = value;
	return 0;
}

/* The values go back to their keys' owners; tls_fini() waits meanwhile. */
static void hand_back_values(void)
{
	struct sim_local *l = sim_local(sim_self());

	for (unsigned i = 0; i < SIM_TLS; i++) {
		struct tls_key *k = live_key(l->tls[i].key);
		void *value = l->tls[i].value;

		l->tls[i].key = 0;
		if (!k || !value)
			continue;
		keys.exiting++;
		k->exit(k->owner, value);
		if (--keys.exiting == 0)
			sim_wake_all(&keys.idle);
	}
}

__attribute__((constructor)) static void set_exit(void) { sim_thread_exit = hand_back_values; }

/* --- time, chance, memory --------------------------------------------------------------------------------- */

uint64_t plat_now_ns(void)
{
	sim_point();
	return sim_now();
}

void plat_wall_time(struct timespec *ts)
{
	*ts = (struct timespec){ (time_t)(sim_now() / NS_PER_S), (long)(sim_now() % NS_PER_S) };
}

void plat_sleep_ns(uint64_t ns)
{
	might_sleep();
	sim_sleep(ns);
}

uint64_t plat_random64(void)
{
	static uint64_t n;

	return ++n * UINT64_C(0x9e3779b97f4a7c15);
}

const volatile uint32_t *plat_alive_create(void)
{
	static const volatile uint32_t alive = 1;

	return sim_fault(SIM_FAULT_ALLOC) ? NULL : &alive;
}

void plat_alive_destroy(const volatile uint32_t *word) { (void)word; }

void *plat_map(size_t bytes, bool huge_pages)
{
	void *p;

	(void)huge_pages;
	if (sim_fault(SIM_FAULT_ALLOC))
		return NULL;
	bytes = round_up(bytes, PAGE_BYTES);
	p = heap_alloc(bytes, PAGE_BYTES);
	if (p)
		memset(p, 0, bytes);
	return p;
}

void plat_unmap(void *p, size_t bytes)
{
	(void)bytes;
	if (p)
		heap_free(p);
}

void plat_populate(void *p, size_t bytes)
{
	(void)p;
	(void)bytes;
}
