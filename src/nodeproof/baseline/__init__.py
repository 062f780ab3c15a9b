"""From runs of nodes that are known to be good to a spec of their kind. Pure: files in, text out.

`evidence` says which runs may speak and for how many nodes, `held` what they were held against,
`learnt` what their figures come to, and `toml` writes it down.
"""
