"""The characters of a text in property tests."""

from hypothesis import strategies as st

ANY = st.characters(exclude_categories=["Cs"])
"""All but surrogates: the same as the default of st.text(), for which hypothesis takes five seconds in a new clone."""
