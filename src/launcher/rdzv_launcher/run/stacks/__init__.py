"""Where this node's workers are in their code: read from outside, as JSON in answers, as text, and into files.

``reading`` asks py-spy or the worker itself for stacks, ``reports`` groups them and says them in words, ``node``
answers for this node, on threads that the main thread does not wait for. A process is left as it was, and only one
debugger looks at a worker at a time.
"""
