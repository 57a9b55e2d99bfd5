"""Secure sums: a coordinator learns the sum of its participants' vectors, and no vector.

Bonawitz et al. 2017 ("Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS)
on the sparse graph of Bell et al. 2020 ("Secure Single-Server Aggregation with (Poly)Logarithmic
Overhead", CCS).  Participant u sends

    y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)     modulo 2^32

where v runs over its neighbours: pair masks cancel in the sum, and what remains of those who left
and the masks b_u of those who stayed are rebuilt from shares that neighbours hold.

    degree        how many neighbours, and how many of them can rebuild a mask
    session       who takes part, and the graph
    participant   a device: five turns, bytes in, bytes out
    coordinator   the server: the same turns, the sum
    resting       a participant between two turns, as bytes
    run           all of them in one process
    parts         what a vector is made of: dense arrays and rows of tables
    sizes         what a participant sends and gets, in bytes

Numbers with a point become integers by :mod:`fedslice.stage.fixed`, in a simulation
(:mod:`fedslice.stage.secure_sums`) and on devices.  docs/secure-sums.md says what this protects
against, and what not.
"""
