/*
 * pacer.c - one thread's share of a wanted rate, as a schedule that does not wait for anybody
 *
 * Operation n of thread i is due at start + (n + i / nr_threads) * period. It is computed from n each time, so
 * that neither rounding nor a late wake-up adds up.
 */
#include "pacer.h"
#include "bench.h"

#include <sys/prctl.h>

void pacer_thread_setup(void)
{
	prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

void pacer_init(struct pacer *p, uint64_t start_ns, uint64_t end_ns, double rate, unsigned index,
		unsigned nr_threads)
{
	double period_ns = 1e9 * nr_threads / rate;

	*p = (struct pacer){
		.start_ns = start_ns,
		.end_ns = end_ns,
		.period_ns = period_ns,
		.phase_ns = period_ns * index / nr_threads,
	};
}

bool pacer_wait(struct pacer *p)
{
	uint64_t due_ns = p->start_ns + (uint64_t)((double)p->next * p->period_ns + p->phase_ns);
	uint64_t now = now_ns();

	if (due_ns >= p->end_ns || now >= p->end_ns)
		return false;
	if (now < due_ns) {
		sleep_until_ns(due_ns);
		now = now_ns();
	}
	if (now > due_ns && now - due_ns > p->lag_max_ns)
		p->lag_max_ns = now - due_ns;
	p->next++;
	return true;
}
