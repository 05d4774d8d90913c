"""Provider plugins that stand in for the official docker and command ones; see the README beside this package."""
