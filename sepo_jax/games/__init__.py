"""Exact game theory on arrays.

- `matrix`: NashConv, exploitability and best-response gains of batches of matrix games.
- `solve`: equilibria of zero-sum matrix games with a certificate.
- `tree`: extensive-form games compiled to arrays; values, best responses, NashConv of batches.
- `equilibrium`: equilibria of tree games by linear programming, CFR and CFR+.
- `kuhn`, `leduc`: two poker games; `explicit`: small trees and matrix games written out by hand.

NashConv is the sum of both players' best-response gains; exploitability is half of it.
"""
