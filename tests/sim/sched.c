/*
 * sched.c - coroutines, choices and time
 *
 * Threads run one at a time, each until a point where the scheduler decides otherwise. Two strategies, picked by the seed:
 *
 *      random walk     at every so-manieth point on average somebody else, picked evenly
 *      priorities      always the highest one that can run; at a few random steps the running one sinks to the bottom, so bugs
 *                      that need only few switches, but those, are found with known odds (PCT)
 *
 * In both a thread that spins gives way, and one that never sleeps is preempted some time. Time stands still while anybody
 * can run; with some seeds it jumps now and then to the next event all the same, as if all threads were slow.
 *
 * Nobody can run and nothing is due: a deadlock, reported with who waits for what. Too many steps: a livelock.
 *
 * Invariants: what decides is the seed and the order of calls, never an address, a real clock or the size of a frame.
 */
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "atomic.h"
#include "sched.h"

#define STACK_BYTES     (256u << 10)
#define START_NS        (3600ull * 1000000000ull)
#define NEVER           UINT64_MAX
#define FAIR_STEPS      20000           /* the longest one thread runs while others could */
#define PCT_MOST        4
#define JUMP_NS         100000000ull    /* the most that time jumps while somebody can run */

enum state { T_FREE, T_READY, T_WAITING };

struct sim_thread {
	void *sp;
	char *stack;
	void (*fn)(void *arg);
	void *arg;
	char name[16];
	unsigned id;
	enum state state;
	bool daemon, timed_out;
	uint64_t when_ns;
	struct sim_queue *queue;
	struct sim_thread *next, *prev;
	const char *why;
	const void *what;
	int64_t priority;
	struct lockdep_stack locks;
	struct sim_local local;
};

void (*sim_thread_exit)(void);

static struct {
	struct sim_run run;
	struct sim_result *out;
	struct sim_thread *current;
	struct sim_thread *ready[SIM_THREADS];
	unsigned nr_ready, nr_alive, nr_waited_for, next_id;
	void *main_sp;
	uint64_t now;
	uint64_t block_end;             /* step at which the points left run out */
	uint64_t parked;                /* points left while frozen */
	struct sim_rng rng, faults;
	/* strategy */
	bool by_priority;
	unsigned mean;                  /* random walk: points between switches */
	bool time_jumps;
	uint64_t change_at[PCT_MOST];   /* ascending; NEVER: used up */
	int64_t lowest;
	bool frozen;
} sim;

/*
 * Points until sim_look(): all that a point costs is to count it down. So steps are not counted, but are what block_end is
 * ahead of it. While frozen, and outside of a world, it is so many that they never run out.
 */
uint64_t sim_points_left = NEVER;

static struct sim_thread threads[SIM_THREADS];
static struct lockdep_stack outside_locks;
static struct sim_local outside = { .locks = &outside_locks };

/* --- chance ----------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

void sim_rng_seed(struct sim_rng *r, uint64_t seed, uint64_t stream)
{
	r->s[0] = mix(seed);
	r->s[1] = mix(r->s[0] ^ mix(stream)) | 1;
}

uint64_t sim_rng_next(struct sim_rng *r)
{
	r->s[0] += r->s[1];             /* an odd step: every state once */
	return mix(r->s[0]);
}

uint64_t sim_below(struct sim_rng *r, uint64_t n)
{
	return n ? (uint64_t)(((unsigned __int128)sim_rng_next(r) * n) >> 64) : 0;
}

static uint64_t steps(void) { return sim.block_end - (sim.frozen ? sim.parked : sim_points_left); }

/* --- switching -------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
void sim_switch_stack(void **save, void *load);
__asm__(".text\n"
	".globl sim_switch_stack\n"
	".type sim_switch_stack,@function\n"
	"sim_switch_stack:\n"
	"	pushq %rbp\n	pushq %rbx\n	pushq %r12\n	pushq %r13\n	pushq %r14\n	pushq %r15\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rsp\n"
	"	popq %r15\n	popq %r14\n	popq %r13\n	popq %r12\n	popq %rbx\n	popq %rbp\n"
	"	ret\n"
	".size sim_switch_stack,.-sim_switch_stack\n");
#elif defined(__aarch64__)
void sim_switch_stack(void **save, void *load);
__asm__(".text\n"
	".globl sim_switch_stack\n"
	".type sim_switch_stack,%function\n"
	"sim_switch_stack:\n"
	"	sub sp, sp, #160\n"
	"	stp x19, x20, [sp, #0]\n	stp x21, x22, [sp, #16]\n	stp x23, x24, [sp, #32]\n"
	"	stp x25, x26, [sp, #48]\n	stp x27, x28, [sp, #64]\n	stp x29, x30, [sp, #80]\n"
	"	stp d8, d9, [sp, #96]\n	stp d10, d11, [sp, #112]\n	stp d12, d13, [sp, #128]\n	stp d14, d15, [sp, #144]\n"
	"	mov x9, sp\n	str x9, [x0]\n	mov sp, x1\n"
	"	ldp x19, x20, [sp, #0]\n	ldp x21, x22, [sp, #16]\n	ldp x23, x24, [sp, #32]\n"
	"	ldp x25, x26, [sp, #48]\n	ldp x27, x28, [sp, #64]\n	ldp x29, x30, [sp, #80]\n"
	"	ldp d8, d9, [sp, #96]\n	ldp d10, d11, [sp, #112]\n	ldp d12, d13, [sp, #128]\n	ldp d14, d15, [sp, #144]\n"
	"	add sp, sp, #160\n	ret\n"
	".size sim_switch_stack,.-sim_switch_stack\n");
#else
#error "the simulator switches stacks by itself: x86-64 and AArch64 only"
#endif

static _Noreturn void leave(enum sim_end end)
{
	void *unused;

	sim.out->end = end;
	sim.current = NULL;
	sim_switch_stack(&unused, sim.main_sp);
	abort();
}

static void go_to(struct sim_thread *t)
{
	struct sim_thread *from = sim.current;

	if (t == from)
		return;
	sim.current = t;
	sim.out->switches++;
	sim_hash(steps() << 8 | t->id);
	sim_switch_stack(&from->sp, t->sp);
}

static void make_ready(struct sim_thread *t)
{
	t->state = T_READY;
	t->when_ns = NEVER;
	sim.ready[sim.nr_ready++] = t;
	/* Somebody more important must run at the next point. */
	if (sim.by_priority && sim.current && !sim.frozen && t->priority > sim.current->priority && sim_points_left > 1) {
		sim.block_end -= sim_points_left - 1;
		sim_points_left = 1;
	}
}

static void make_unready(struct sim_thread *t)
{
	unsigned i = 0;

	while (sim.ready[i] != t)
		i++;
	for (sim.nr_ready--; i < sim.nr_ready; i++)
		sim.ready[i] = sim.ready[i + 1];
}

static void unqueue(struct sim_thread *t)
{
	struct sim_queue *q = t->queue;

	if (!q)
		return;
	*(t->prev ? &t->prev->next : &q->head) = t->next;
	*(t->next ? &t->next->prev : &q->tail) = t->prev;
	t->queue = NULL;
}

/* Moves time on to the next thread that is due, at most so far; false: there is none. */
static bool advance_time(uint64_t most_ns)
{
	uint64_t next = NEVER;

	for (unsigned i = 0; i < SIM_THREADS; i++)
		if (threads[i].state == T_WAITING && threads[i].when_ns < next)
			next = threads[i].when_ns;
	if (next == NEVER || (next > sim.now && next - sim.now > most_ns))
		return false;
	if (next > sim.now)
		sim.now = next;
	for (unsigned i = 0; i < SIM_THREADS; i++) {
		struct sim_thread *t = &threads[i];

		if (t->state == T_WAITING && t->when_ns <= sim.now) {
			t->timed_out = true;
			unqueue(t);
			make_ready(t);
		}
	}
	return true;
}

static struct sim_thread *pick(void)
{
	struct sim_thread *best = sim.ready[0];

	if (!sim.by_priority)
		return sim.ready[sim_below(&sim.rng, sim.nr_ready)];
	for (unsigned i = 1; i < sim.nr_ready; i++)
		if (sim.ready[i]->priority > best->priority)
			best = sim.ready[i];
	return best;
}

/* How many points until the scheduler looks again. */
static void plan(void)
{
	uint64_t n, now = steps();

	if (sim.by_priority) {
		n = FAIR_STEPS;
		for (unsigned i = 0; i < PCT_MOST; i++)
			if (sim.change_at[i] != NEVER && sim.change_at[i] - now < n)
				n = sim.change_at[i] - now;
	} else {
		n = 1 + sim_below(&sim.rng, 2 * sim.mean - 1);
	}
	if (sim.run.power_off_at > now && sim.run.power_off_at - now < n)
		n = sim.run.power_off_at - now;
	sim_points_left = n ? n : 1;
	sim.block_end = now + sim_points_left;
}

/* The current thread waits or has ended: somebody else. */
static void run_another(void)
{
	while (!sim.nr_ready)
		if (!advance_time(NEVER))
			sim_fail("deadlock: nobody can run and nothing is due");
	plan();
	go_to(pick());
}

void sim_look(void)
{
	uint64_t now = steps();

	if (sim.run.power_off_at && now >= sim.run.power_off_at)
		leave(SIM_POWER_OFF);
	if (now >= sim.run.max_steps)
		sim_fail("livelock: %llu steps and no end", (unsigned long long)now);
	if (sim.by_priority) {
		bool changed = false;

		for (unsigned i = 0; i < PCT_MOST; i++) {
			if (sim.change_at[i] <= now) {
				sim.change_at[i] = NEVER;
				changed = true;
			}
		}
		if (changed || pick() == sim.current)
			sim.current->priority = --sim.lowest;
	}
	if (sim.time_jumps && sim_below(&sim.rng, 512) == 0)
		advance_time(JUMP_NS);
	plan();
	go_to(pick());
}

void sim_point(void) { sim_atomic_point(); }

void sim_yield(void)
{
	if (!sim.current)
		return;
	if (sim.frozen)
		sim_fail("a checker spins");
	sim.block_end++;                /* one step more */
	if (sim.run.power_off_at && steps() >= sim.run.power_off_at)
		leave(SIM_POWER_OFF);
	if (steps() >= sim.run.max_steps)
		sim_fail("livelock: %llu steps and no end", (unsigned long long)steps());
	if (sim.nr_ready == 1)
		advance_time(NEVER);
	sim.current->priority = --sim.lowest;
	plan();
	go_to(pick());
}

/* --- threads ---------------------------------------------------------------------------------------------- */

struct sim_thread *sim_self(void) { return sim.current; }
unsigned sim_thread_id(const struct sim_thread *t) { return t->id; }
bool sim_thread_ended(const struct sim_thread *t) { return t->state == T_FREE; }
struct sim_local *sim_local(struct sim_thread *t) { return t ? &t->local : &outside; }

void sim_for_each_thread(void (*fn)(struct sim_thread *t, void *arg), void *arg)
{
	for (unsigned i = 0; i < SIM_THREADS; i++)
		if (threads[i].state != T_FREE)
			fn(&threads[i], arg);
}

static void thread_entry(void)
{
	struct sim_thread *t = sim.current;

	t->fn(t->arg);
	if (sim_thread_exit)
		sim_thread_exit();
	if (t->locks.nr)
		sim_fail("thread %u %s ended with %u locks held", t->id, t->name, t->locks.nr);
	make_unready(t);
	t->state = T_FREE;
	sim.nr_alive--;
	if (!t->daemon && --sim.nr_waited_for == 0)
		leave(SIM_DONE);
	run_another();
	abort();
}

static void make_stacks(void)
{
	char *all = mmap((void *)UINT64_C(0x510000000000), SIM_THREADS * (size_t)STACK_BYTES, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	if (all == MAP_FAILED) {
		perror("iomap-sim: no memory for stacks");
		exit(2);
	}
	for (unsigned i = 0; i < SIM_THREADS; i++) {
		threads[i].stack = all + (size_t)i * STACK_BYTES;
		mprotect(threads[i].stack, 4096, PROT_NONE);
	}
}

struct sim_thread *sim_spawn(const char *name, void (*fn)(void *arg), void *arg, bool daemon)
{
	struct sim_thread *t = NULL;
	uint64_t *sp;

	for (unsigned i = 0; i < SIM_THREADS && !t; i++)
		if (threads[i].state == T_FREE && &threads[i] != sim.current)
			t = &threads[i];
	if (!t)
		return NULL;
	t->fn = fn;
	t->arg = arg;
	snprintf(t->name, sizeof(t->name), "%s", name);
	t->id = ++sim.next_id;
	t->daemon = daemon;
	t->queue = NULL;
	t->locks.nr = 0;
	t->local = (struct sim_local){ .locks = &t->locks };
	t->priority = (int64_t)(sim_rng_next(&sim.rng) >> 2);
	sp = (uint64_t *)(t->stack + STACK_BYTES);
#if defined(__x86_64__)
	*--sp = 0;                                      /* a return address for thread_entry(), which never returns */
	*--sp = (uint64_t)(uintptr_t)thread_entry;
	for (unsigned i = 0; i < 6; i++)
		*--sp = 0;
#else
	sp -= 20;
	memset(sp, 0, 160);
	sp[11] = (uint64_t)(uintptr_t)thread_entry;     /* x30 */
#endif
	t->sp = sp;
	sim.nr_alive++;
	if (!daemon)
		sim.nr_waited_for++;
	make_ready(t);
	return t;
}

/* --- sleeping --------------------------------------------------------------------------------------------- */

bool sim_wait_until(struct sim_queue *q, const char *why, const void *what, uint64_t when_ns)
{
	struct sim_thread *t = sim.current;

	if (sim.frozen && !q)
		return false;           /* no time passes */
	if (sim.frozen)
		sim_fail("a checker would sleep: %s", why);
	t->state = T_WAITING;
	t->when_ns = when_ns;
	t->timed_out = false;
	t->why = why;
	t->what = what;
	t->queue = q;
	if (q) {
		t->next = NULL;
		t->prev = q->tail;
		*(q->tail ? &q->tail->next : &q->head) = t;
		q->tail = t;
	}
	make_unready(t);
	sim.block_end++;                /* one step more */
	run_another();
	return !t->timed_out;
}

void sim_wait(struct sim_queue *q, const char *why, const void *what)
{
	sim_wait_until(q, why, what, NEVER);
}

bool sim_wake_one(struct sim_queue *q)
{
	struct sim_thread *t = q->head;
	unsigned n = 0;

	if (!t)
		return false;
	for (; t; t = t->next)
		n++;
	t = q->head;
	for (uint64_t skip = sim_below(&sim.rng, n); skip; skip--)
		t = t->next;
	unqueue(t);
	make_ready(t);
	return true;
}

void sim_wake_all(struct sim_queue *q)
{
	while (q->head) {
		struct sim_thread *t = q->head;

		unqueue(t);
		make_ready(t);
	}
}

bool sim_queue_empty(const struct sim_queue *q) { return !q->head; }

uint64_t sim_now(void) { return sim.now; }

void sim_sleep(uint64_t ns)
{
	sim_wait_until(NULL, "sleep", NULL, sim.now + ns);
}

/* --- the end of a run ------------------------------------------------------------------------------------- */

static size_t describe_thread(const struct sim_thread *t, char *buf, size_t len)
{
	int n = snprintf(buf, len, "\n  %2u %-15s ", t->id, t->name);

	if (t == sim.current)
		n += snprintf(buf + n, len - (size_t)n, "runs");
	else if (t->state == T_READY)
		n += snprintf(buf + n, len - (size_t)n, "could run");
	else
		n += snprintf(buf + n, len - (size_t)n, "waits: %s %p", t->why, t->what);
	if (t->when_ns != NEVER && t->state == T_WAITING)
		n += snprintf(buf + n, len - (size_t)n, ", %.3f ms left", (double)(t->when_ns - sim.now) / 1e6);
	for (unsigned i = 0; i < t->locks.nr && (size_t)n + 64 < len; i++)
		n += snprintf(buf + n, len - (size_t)n, "%s %s(%d) %p", i ? "," : "; holds",
			      lockdep_rank_name(t->locks.held[i].rank), (int)t->locks.held[i].rank, t->locks.held[i].lock);
	return (size_t)n;
}

void sim_fail(const char *fmt, ...)
{
	struct sim_result *out = sim.out;
	va_list ap;
	size_t n;

	va_start(ap, fmt);
	n = (size_t)vsnprintf(out->report, sizeof(out->report) / 2, fmt, ap);
	va_end(ap);
	if (n > sizeof(out->report) / 2)
		n = sizeof(out->report) / 2;
	for (unsigned i = 0; i < SIM_THREADS && n + 512 < sizeof(out->report); i++)
		if (threads[i].state != T_FREE)
			n += describe_thread(&threads[i], out->report + n, sizeof(out->report) - n);
	leave(SIM_FAILED);
}

void sim_power_off(void) { leave(SIM_POWER_OFF); }

static void on_signal(int sig, siginfo_t *info, void *context)
{
	void *frames[16];
	int n;

	(void)context;
	if (!sim.current) {
		signal(sig, SIG_DFL);
		raise(sig);
		return;
	}
	n = backtrace(frames, 16);
	fprintf(stderr, "iomap-sim: signal %d at:\n", sig);
	backtrace_symbols_fd(frames, n, 2);
	sim_fail("signal %d (%s) at address %p", sig, strsignal(sig), info->si_addr);
}

static void catch_signals(void)
{
	static char alternate[65536];
	const stack_t ss = { .ss_sp = alternate, .ss_size = sizeof(alternate) };
	struct sigaction sa = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };

	sigaltstack(&ss, NULL);
	sigaction(SIGSEGV, &sa, NULL);
	sigaction(SIGBUS, &sa, NULL);
	sigaction(SIGFPE, &sa, NULL);
	sigaction(SIGILL, &sa, NULL);
	sigaction(SIGABRT, &sa, NULL);
}

void sim_trace(const char *fmt, ...)
{
	va_list ap;

	if (!sim.run.trace)
		return;
	printf("%9llu %10.3f ms  %2u %-15s ", (unsigned long long)steps(), (double)(sim.now - START_NS) / 1e6,
	       sim.current ? sim.current->id : 0, sim.current ? sim.current->name : "-");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
}

bool sim_tracing(void) { return sim.run.trace; }

void sim_hash(uint64_t what)
{
	sim.out->hash = (sim.out->hash ^ what) * UINT64_C(0x9e3779b97f4a7c15);
	sim.out->hash ^= sim.out->hash >> 29;
}

void sim_freeze(void)
{
	if (sim.frozen)
		sim_fail("frozen twice");
	sim.parked = sim_points_left;
	sim_points_left = NEVER;
	sim.frozen = true;
}

void sim_thaw(void)
{
	sim.frozen = false;
	sim_points_left = sim.parked;
}

bool sim_others_hold_short_locks(void)
{
	for (unsigned i = 0; i < SIM_THREADS; i++) {
		const struct sim_thread *t = &threads[i];

		for (unsigned k = 0; t->state != T_FREE && t != sim.current && k < t->locks.nr; k++)
			if (t->locks.held[k].rank >= LOCK_SHORT)
				return true;
	}
	return false;
}

bool sim_fault(enum sim_fault what)
{
	const struct sim_run *run = &sim.run;
	uint64_t n = ++sim.out->events[what];
	bool fail = run->fail_nth[what] == n;

	if (!fail && run->fail_chance[what] && steps() >= run->fail_after)
		fail = sim_chance(&sim.faults, run->fail_chance[what], 1024);
	if (fail && !sim.frozen) {
		sim.out->faults++;
		sim_trace("fault %d, number %llu", (int)what, (unsigned long long)n);
	}
	return fail && !sim.frozen;
}

void sim_no_more_faults(void)
{
	memset(sim.run.fail_nth, 0, sizeof(sim.run.fail_nth));
	memset(sim.run.fail_chance, 0, sizeof(sim.run.fail_chance));
}

static void choose_strategy(void)
{
	static const unsigned means[] = { 1, 2, 4, 8, 16, 48 };
	struct sim_rng *r = &sim.rng;

	sim.by_priority = sim_chance(r, 1, 3);
	sim.mean = means[sim_below(r, sizeof(means) / sizeof(means[0]))];
	sim.time_jumps = sim_chance(r, 1, 4);
	for (unsigned i = 0, n = 1 + (unsigned)sim_below(r, PCT_MOST); i < PCT_MOST; i++)
		sim.change_at[i] = sim.by_priority && i < n ? 1 + sim_below(r, 30000) : NEVER;
	sim.lowest = 0;
}

void sim_run(const struct sim_run *run, void (*fn)(void *arg), void *arg, struct sim_result *out)
{
	static bool made;

	if (!made) {
		make_stacks();
		catch_signals();
		made = true;
	}
	for (unsigned i = 0; i < SIM_THREADS; i++)
		threads[i].state = T_FREE;
	memset(out, 0, offsetof(struct sim_result, report));
	out->report[0] = '\0';
	memset(&sim, 0, sizeof(sim));
	sim.run = *run;
	sim.out = out;
	sim.now = START_NS;
	sim_rng_seed(&sim.rng, run->seed, 1);
	sim_rng_seed(&sim.faults, run->seed, 2);
	choose_strategy();
	heap_reset();
	heap_is_on = true;
	outside_locks.nr = 0;
	sim_spawn("main", fn, arg, false);
	sim.block_end = sim_points_left;        /* no step yet */
	plan();
	sim.current = sim.ready[0];
	sim_switch_stack(&sim.main_sp, sim.current->sp);
	sim.current = NULL;
	out->steps = steps();
	sim.parked = sim_points_left;
	sim_points_left = NEVER;
	sim.frozen = true;
	heap_is_on = false;
}
