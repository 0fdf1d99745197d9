"""SBX's SAC or TD3 on HalfCheetah-v5: prints how many environment steps it trains on in a second."""

from importlib.metadata import version

from off_policy_work import WORKLOADS, Marks, fill, make
from sbx import SAC, TD3
from window import Window, parse, report


def main() -> None:
    arguments = parse(WORKLOADS)
    # Its networks have ReLU by themselves, and all updates of a round are one XLA program.
    model = make({"sac": SAC, "td3": TD3}[arguments.workload], arguments.workload)
    fill(model)
    window = Window(warm_up=2, seconds=arguments.seconds)
    model.learn(10**9, callback=Marks(window), reset_num_timesteps=False)
    report("sbx", version("sbx-rl"), arguments.workload, window, "DummyVecEnv, XLA on all cores")


if __name__ == "__main__":
    main()
