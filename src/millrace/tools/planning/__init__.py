"""One plan for everything that decides how a weight update runs.

alternatives.py     layouts of the devices, and the updates that each allows
cost.py             the time of an update, from counted or measured costs
search.py           compiles those that may win, and ranks them
measuring.py        runs compiled updates and stages on zeros
applying.py         puts the options of an update in force
training_plan.py    TrainingPlan, the result
plan.py             Strategy.plan
automatic.py        Strategy(memory=...): fit plans before its first step
"""
