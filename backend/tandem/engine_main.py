"""The engine's process: `python -m tandem.engine_main FD`, started by `engine_process`.

It is the first that a spawned process of vLLM imports, too, for multiprocessing does that with the
main module of whoever starts one.
"""

from tandem.garbage import look_seldom

look_seldom()

if __name__ == "__main__":
    from tandem.service_worker import main

    main()
