/*
 * task.c - what one thread has done and owes in one cache
 *
 * Counts of events and the throttle's debt are per thread, so that a hit writes no shared memory and a writer takes no lock to
 * count. They are summed when asked; a thread that exits leaves its sums, and its debt to whoever writes next.
 *
 * Locking: cache->task_lock for the list; a task is written by its thread alone.
 * Kernel:  task_struct's nr_dirtied and dirty_paused_when; per-cpu vm events.
 */
#include "cache.h"

static void task_exit(void *owner, void *value)
{
	struct iomap_cache *cache = owner;
	struct task *t = value;

	mutex_lock(&cache->task_lock);
	for (unsigned i = 0; i < TASK_STATS; i++)
		cache->gone[i] += load_relaxed(&t->stat[i]);
	if (!t->internal)
		add_relaxed(&cache->leaked_units, t->throttle.nr_dirtied);
	list_del(&t->all);
	mutex_unlock(&cache->task_lock);
	mem_free(&cache->zone.mem, t, sizeof(*t));
}

struct task *cache_task(struct iomap_cache *cache)
{
	struct task *t = tls_get(&cache->task_key);

	if (likely(t != NULL))
		return t;
	t = mem_alloc_aligned(&cache->zone.mem, sizeof(*t), 64);
	if (!t)
		return NULL;
	throttle_task_init(&t->throttle);
	list_init(&t->all);
	if (tls_set(&cache->task_key, t)) {
		mem_free(&cache->zone.mem, t, sizeof(*t));
		return NULL;
	}
	mutex_lock(&cache->task_lock);
	list_add_tail(&cache->tasks, &t->all);
	mutex_unlock(&cache->task_lock);
	return t;
}

void cache_count_orphan(struct iomap_cache *cache, enum task_stat s, uint64_t n)
{
	mutex_lock(&cache->task_lock);
	cache->gone[s] += n;
	mutex_unlock(&cache->task_lock);
}

void cache_thread_begin(struct iomap_cache *cache)
{
	struct task *task = cache_task(cache);

	add_relaxed(&cache->nr_threads, 1);
	if (task)
		task->internal = true;
}

void cache_thread_end(struct iomap_cache *cache)
{
	sub_acq_rel(&cache->nr_threads, 1);
}

struct device_call cache_device_begin(struct iomap_cache *cache)
{
	struct device_call call = { .task = cache_task(cache), .locks = lockdep_callback_begin() };

	if (call.task)
		call.task->in_device++;
	return call;
}

void cache_device_end(struct device_call call)
{
	if (call.task)
		call.task->in_device--;
	lockdep_callback_end(call.locks);
}

uint64_t cache_task_sum(struct iomap_cache *cache, enum task_stat s)
{
	uint64_t sum;

	mutex_lock(&cache->task_lock);
	sum = cache->gone[s];
	list_for_each(it, &cache->tasks)
		sum += load_relaxed(&list_entry(it, struct task, all)->stat[s]);
	mutex_unlock(&cache->task_lock);
	return sum;
}

void tasks_init(struct iomap_cache *cache)
{
	mutex_init(&cache->task_lock, LOCK_LEAF);
	list_init(&cache->tasks);
	tls_init(&cache->task_key, task_exit, cache);
}

void tasks_fini(struct iomap_cache *cache)
{
	tls_fini(&cache->task_key);
	while (!list_empty(&cache->tasks)) {
		struct task *t = list_first(&cache->tasks, struct task, all);

		list_del(&t->all);
		mem_free(&cache->zone.mem, t, sizeof(*t));
	}
	mutex_fini(&cache->task_lock);
}
