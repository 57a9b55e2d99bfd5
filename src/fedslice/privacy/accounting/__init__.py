"""How much noisy releases tell about one client.

mechanism, release, local, skellam, correlated   what was noised, as an accountant reads it
matrix                                           noise that is correlated over rounds
account, budget, composition                     epsilon, and the noise or the rounds for it
"""
