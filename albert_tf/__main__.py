"""Runs the command `albert`: python -m albert_tf COMMAND --flag=value ..."""

from albert_tf.cli.commands import main

if __name__ == "__main__":
    main()
