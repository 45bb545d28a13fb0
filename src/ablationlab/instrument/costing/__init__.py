"""What training costs in time, memory, disk and money, before anything is trained.

`estimate` times this machine; `outlook` plans for named hardware that need not be here, from data sheets (`hardware`), what a
step does (`step`), how runs use GPUs (`layouts`) and what is written (`disk`).
"""
