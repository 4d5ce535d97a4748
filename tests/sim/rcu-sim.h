/*
 * rcu-sim.h - rcu.h in the simulator: a callback runs once every section that was open when it was queued has ended
 */
#ifndef IOMAP_RCU_SIM_H
#define IOMAP_RCU_SIM_H

struct rcu_head { struct rcu_head *next; void (*fn)(struct rcu_head *head); };

void rcu_enter(void);
void rcu_exit(void);
void rcu_free(struct rcu_head *head, void (*fn)(struct rcu_head *head));
static inline void rcu_callback_begin(struct rcu_head *head) { (void)head; }
void rcu_drain(void);

void rcu_sim_start(void);       /* in a fresh world: its thread */

#endif
