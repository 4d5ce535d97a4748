/*
 * rcu-sim.c - read-copy-update by counting
 *
 * One thread takes what is queued, notes which threads are inside a section, waits until each has left it, and calls back.
 * It is slow or fast as the scheduler likes, so a callback runs as early as it legally may, and as late.
 */
#include "rcu.h"
#include "sched.h"

static struct {
	struct rcu_head *first, **last;
	uint64_t queued, called;
	struct sim_queue work, left, drained;
} rcu;

void rcu_enter(void)
{
	sim_local(sim_self())->rcu_nesting++;
	sim_point();
}

void rcu_exit(void)
{
	struct sim_local *l = sim_local(sim_self());

	sim_point();
	if (!l->rcu_nesting)
		sim_fail("rcu_exit() without rcu_enter()");
	if (--l->rcu_nesting == 0) {
		l->rcu_sections++;
		sim_wake_all(&rcu.left);
	}
}

void rcu_free(struct rcu_head *head, void (*fn)(struct rcu_head *head))
{
	head->next = NULL;
	head->fn = fn;
	*rcu.last = head;
	rcu.last = &head->next;
	rcu.queued++;
	sim_wake_all(&rcu.work);
	sim_point();
}

void rcu_drain(void)
{
	uint64_t want = rcu.queued;

	might_sleep();
	if (sim_local(sim_self())->rcu_nesting)
		sim_fail("rcu_drain() inside a section");
	while (rcu.called < want)
		sim_wait(&rcu.drained, "rcu_drain", NULL);
	sim_point();
}

struct open_section { struct sim_thread *t; unsigned id; uint64_t sections; };
struct open_sections { struct open_section s[SIM_THREADS]; unsigned nr; };

static void note_open(struct sim_thread *t, void *arg)
{
	struct open_sections *o = arg;

	if (sim_local(t)->rcu_nesting)
		o->s[o->nr++] = (struct open_section){ t, sim_thread_id(t), sim_local(t)->rcu_sections };
}

static bool still_open(const struct open_section *s)
{
	return !sim_thread_ended(s->t) && sim_thread_id(s->t) == s->id && sim_local(s->t)->rcu_nesting &&
	       sim_local(s->t)->rcu_sections == s->sections;
}

static void rcu_main(void *unused)
{
	(void)unused;
	for (;;) {
		struct open_sections open = { .nr = 0 };
		struct rcu_head *head;

		while (!rcu.first)
			sim_wait(&rcu.work, "rcu callbacks", NULL);
		head = rcu.first;
		rcu.first = NULL;
		rcu.last = &rcu.first;
		sim_for_each_thread(note_open, &open);
		for (unsigned i = 0; i < open.nr; i++)
			while (still_open(&open.s[i]))
				sim_wait(&rcu.left, "rcu grace period", open.s[i].t);
		while (head) {
			struct rcu_head *next = head->next;

			head->fn(head);
			rcu.called++;
			head = next;
			sim_point();
		}
		sim_wake_all(&rcu.drained);
	}
}

void rcu_sim_start(void)
{
	rcu.first = NULL;
	rcu.last = &rcu.first;
	rcu.queued = rcu.called = 0;
	rcu.work = rcu.left = rcu.drained = (struct sim_queue){ 0 };
	sim_spawn("rcu", rcu_main, NULL, true);
}
