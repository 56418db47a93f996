"""Secrets of many makers, made up, each as it stands in a command line or in a log; none was ever valid."""

from __future__ import annotations

HEX = "0123456789abcdef"
MIXED = "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY"
BODY = "MIIEowIBAAKCAQEA3Tz2mr7SZiAMfQyuvBjM9OiJjRazXBZ1BjP5CE0Wm9Rr0Yv1"

PLANTED: dict[str, tuple[str, str]] = {
    "an option's key": ("train.py --wandb-key 0123456789abcdef0123456789 --lr 3", "0123456789abcdef"),
    "an option's key with =": ("train.py --wandb_key=0123456789abcdef0123456789", "0123456789abcdef"),
    "an option's user and password": ("fetch --auth bob:hunter2 url", "hunter2"),
    "a proxy without scheme": ("https_proxy=bob:hunter2@proxy:80 train.py", "hunter2"),
    "a proxy's option": ("fetch --proxy bob:hunter2@proxy:80", "hunter2"),
    "sshpass by a variable": ("SSHPASS=hunter2 ssh node1", "hunter2"),
    "a PAT": ("GITHUB_PAT=hunter2hunter2 git pull", "hunter2"),
    "a JWT": ("JWT=hunter2.hunter2 serve", "hunter2"),
    "--pass": ("login --pass hunter2", "hunter2"),
    "--pwd": ("login --pwd=hunter2", "hunter2"),
    "pwd=": ("connect pwd=hunter2 host=db", "hunter2"),
    **{
        f"a vendor's key: {name}": (f"train.py --{name.lower().replace('_', '-')} {MIXED}a1", MIXED[:16])
        for name in (
            *("WANDB_KEY", "COMET_KEY", "NEPTUNE_AUTH", "CLEARML_KEY", "MLFLOW_AUTH", "OPENAI_KEY", "ANTHROPIC_KEY"),
            *("COHERE_KEY", "MISTRAL_KEY", "GROQ_KEY", "TOGETHER_KEY", "FIREWORKS_KEY", "REPLICATE_KEY", "HF_KEY"),
            *("AWS_KEY", "AZURE_KEY", "GCP_KEY", "OCI_KEY", "DO_KEY", "LINODE_KEY", "VULTR_KEY", "HETZNER_KEY"),
            *("LAMBDA_KEY", "RUNPOD_KEY", "VAST_KEY", "COREWEAVE_KEY", "PAPERSPACE_KEY", "MODAL_KEY", "ANYSCALE_KEY"),
            *("DATABRICKS_PAT", "SNOWFLAKE_JWT", "MONGO_AUTH", "REDIS_AUTH", "PG_AUTH", "ELASTIC_KEY", "PINECONE_KEY"),
            *("WEAVIATE_KEY", "QDRANT_KEY", "MILVUS_CREDS", "SLACK_AUTH", "DISCORD_KEY", "TWILIO_AUTH", "SENDGRID_KEY"),
            *("MAILGUN_KEY", "STRIPE_KEY", "DATADOG_KEY", "NEWRELIC_KEY", "SENTRY_KEY", "GRAFANA_KEY", "HONEYCOMB_KEY"),
            *(
                "GITHUB_PAT",
                "GITLAB_PAT",
                "BITBUCKET_KEY",
                "JIRA_PAT",
                "NGC_KEY",
                "NVCF_KEY",
                "DVC_CREDS",
                "ROBOFLOW_KEY",
            ),
        )
    },
    "hugging face": (f"train.py --hub hf_{MIXED}ab", f"hf_{MIXED}"),
    "github": (f"git clone ghp_{MIXED}abcd", f"ghp_{MIXED}"),
    "github fine-grained": (f"fetch github_pat_11ABCDEFG0_{MIXED}", f"11ABCDEFG0_{MIXED}"),
    "gitlab": ("pull glpat-aB3dE5fG7hJ9kL1mN2pQ", "glpat-aB3dE5"),
    "slack": ("notify xoxb-123456789012-1234567890123-aB3dE5fG7hJ9kL1mN2pQ4rS6", "1234567890123-aB3d"),
    "slack webhook": (f"--notify https://hooks.slack.com/services/T0AAAAAAA/B0AAAAAAA/{MIXED[:24]}", MIXED[:24]),
    "openai": (f"serve sk-{MIXED}T3BlbkFJ{MIXED[:8]}", f"sk-{MIXED}"),
    "openai project": (f"serve sk-proj-{MIXED}_{MIXED}-x", f"sk-proj-{MIXED}"),
    "anthropic": (f"serve sk-ant-api03-{MIXED}-{MIXED}-AA", f"sk-ant-api03-{MIXED}"),
    "stripe": ("pay sk_live_" + MIXED[:24], MIXED[:24]),
    "npm": (f"install npm_{MIXED}abcd", f"npm_{MIXED}"),
    "pypi": (f"upload pypi-AgEIcHlwaS5vcmc{MIXED}{MIXED}", f"pypi-AgEIcHlwaS5vcmc{MIXED}"),
    "aws pair": (
        "copy AKIAIOSFODNN7EXAMPL2 wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    ),
    "aws secret": (
        "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEZ s3 ls",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEZ",
    ),
    "google api key": ("maps AIzaSyA-0123456789_abcdefghijklmnopqrstu", "AIzaSyA-0123456789"),
    "google service account": (
        rf"{{\"private_key\": \"-----BEGIN PRIVATE KEY-----\n{BODY}\n-----END PRIVATE KEY-----\n\"}} loaded",
        BODY,
    ),
    "azure storage": (
        f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={MIXED}{MIXED}abcdefghijklmnopqrstuv==;E=x",
        f"{MIXED}{MIXED}",
    ),
    "azure sas": (
        "get https://x.blob.core.windows.net/c/b?sv=2022-11-02&sr=b&sig=aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY%3D",
        "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY%3D",
    ),
    "sendgrid": (f"mail SG.{MIXED[:22]}.{MIXED}abcdefghijk", f"{MIXED[:22]}.{MIXED}"),
    "twilio": (f"call SK{HEX}{HEX}", f"SK{HEX}"),
    "jwt": (
        "login eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
        "dozjgNryP4J3jVmNHl0w5N",
    ),
    "wandb": (f"WANDB_API_KEY={HEX}{HEX}01234567 python", f"{HEX}{HEX}01234567"),
    "wandb login": (f"wandb login {HEX}{HEX}76543210", f"{HEX}{HEX}76543210"),
    "nvidia": (f"docker run nvapi-{MIXED}_{MIXED}", f"nvapi-{MIXED}"),
    "database": ("--storage postgres://optuna:s3cr3tPw1@db.example.org:5432/study", "s3cr3tPw1"),
    "database, odd characters": ("--storage mysql://optuna:s3cr/tP@w2@db:3306/study", "s3cr/tP@w2"),
    "basic auth": ("curl https://ann:s3cr3tPw3@git.example.org/x.git", "s3cr3tPw3"),
    "curl user": ("curl -s -u ann:s3cr3tPw4 http://h/x", "s3cr3tPw4"),
    "bearer": (f"curl -H 'Authorization: Bearer {MIXED}z1' http://h", f"{MIXED}z1"),
    "cookie": ("Cookie: session=s3cr3tPw5; theme=dark", "s3cr3tPw5"),
    "password, blank": ("train.py --password s3cr3tPw6 --lr 0.1", "s3cr3tPw6"),
    "password, prefixed": ("train.py --db-password s3cr3tPw7 --lr 0.1", "s3cr3tPw7"),
    "password, quoted": ("""train.py --password="s3cr3t Pw8" --lr 0.1""", "Pw8"),
    "password, as Python prints argv": (
        "['python', 'train.py', '--hub_token', 's3cr3tPw9', '--lr', '0.1']",
        "s3cr3tPw9",
    ),
    "api key": ("train.py --api-key=s3cr3tPw10 --lr 0.1", "s3cr3tPw10"),
    "mysql -p": ("mysql -u root -ps3cr3tPw11 study", "s3cr3tPw11"),
    "sshpass -p": ("sshpass -p s3cr3tPw12 ssh node2", "s3cr3tPw12"),
    "docker login -p": ("docker login -u ann -p s3cr3tPw13 registry.example.org", "s3cr3tPw13"),
    "databricks": (f"dbx dapi{HEX}{HEX}-2", f"dapi{HEX}"),
    "comet": (f"comet_ml.init(api_key='{MIXED[:25]}z')", f"{MIXED[:25]}z"),
    "neptune": ("NEPTUNE eyJhcGlfYWRkcmVzcyI6Imh0dHBzOi8vYXBwLm5lcHR1bmUuYWkiLCJhcGlfa2V5IjoiMSJ9", "Imh0dHBzOi8vYXBw"),
    "age": ("decrypt AGE-SECRET-KEY-1QQPQYRR53XKQ5S3C7JZ0G8D2A9HQZ4W0V6N8MXUT", "QQPQYRR53XKQ5S3C7"),
    "vault": (f"vault read hvs.CAESI{MIXED}", f"hvs.CAESI{MIXED}"),
    "vault, of old": ("vault read s.aB3dE5fG7hJ9kL1mN2pQ4rS6", "aB3dE5fG7hJ9kL1mN2pQ4rS6"),
    "pydantic": ("Settings(url='x', api_key=SecretStr('s3cr3tPw15'))", "s3cr3tPw15"),
    "comma within": ("train.py --password=ab,s3cr3tPw16;x&y --lr 0.1", "s3cr3tPw16"),
    "quote within": ("DB_PASSWORD=ab's3cr3tPw17 python", "s3cr3tPw17"),
    "arrow": ("'password' => 's3cr3tPw18'", "s3cr3tPw18"),
    "pwd": ("MYSQL_PWD=s3cr3tPw19 mysql", "s3cr3tPw19"),
    "xml": ("<a><password>s3cr3tPw20</password></a>", "s3cr3tPw20"),
    "url with quotes": ("--storage postgres://u:it's3cr3tPw21@db/x", "s3cr3tPw21"),
    "coloured": (f"\x1b[31mhf_{MIXED[:-1]}z\x1b[0m was refused", f"{MIXED[:-1]}z"),
    "clipped token": ("train.py --hub hf_aB3dE…", "aB3dE…"),
    "clipped password": ("train.py --storage postgres://optuna:s3cr3tPw14…", "s3cr3tPw14"),
}
"""By kind: a text that holds it, and what of it must not be shown."""

VARIABLES = {
    "HF_TOKEN": "s3cr3tVar1",
    "WANDB_API_KEY": "s3cr3tVar2",
    "PGPASSWORD": "s3cr3tVar3",
    "AWS_SECRET_ACCESS_KEY": "s3cr3tVar4",
    "OPENAI_KEY": "s3cr3tVar5",
    "MY_SECRET": "two s3cr3tVar6",
}
"""Variables whose names alone say that their values are secrets."""

HARMLESS = (
    "/home/ann/.cache/huggingface/hub/models--gpt2/snapshots/607a30d783dfa663caf39e06633721c8d4cfcd7e/config.json",
    "commit 607a30d783dfa663caf39e06633721c8d4cfcd7e with changes (3f9a1c0b77de)",
    "NCCL INFO comm 0x55d0c8a0 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9f3a64c4fd5d1a21 - Init COMPLETE",
    "GPU-5a3b8f0e-12cd-34ef-9abc-1234567890ab is used by pid 4711",
    "docker container 3f9a1c0b77de4a6b8c0d1e2f3a4b5c6d7e8f9a0b1c2d3e4f5a6b7c8d9e0f1a2b",
    "a4:bf:01:7f:aa:03 fe80::a6bf:1ff:fe7f:aa03%eno1 2001:db8:0:1::7",
    "tcp://10.0.0.1:29500 http://[2001:db8::1]:8080/x ssh://node2:22 docker://img:latest",
    "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDZEcMJg5oG1YbDzvM",
    "node1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0Zt7B3mWmR9pXk1fQy8gq2eL5vHn4cTtYw6uSdAbCd",
    "train.py --tokenizer gpt2 --max-tokens 4096 --max_tokens=4096 --eos_token </s> --token-ids 1",
    "tokens: 12345, tokens per second: 99.5, num_tokens=4096",
    "in hf_hub_download, hf_transfer_enabled, npm_config_cache, sk-learn-contrib, key-value store",
    "python -m torch.distributed.run --rdzv_endpoint node1:29500 -p 8080 train.py",
    "ssh -p 2222 node1; docker run -p 8080:80 image; mkdir -p /tmp/x",
    "PWD=/root OLDPWD=/tmp pwd: /x",
    "api_key=(left out), lr=0.1",
    "cat: /etc/passwd: Permission denied",
    "open /var/run/secrets/kubernetes.io/serviceaccount/token: no such file or directory",
    "token=None, secret: null, password=''",
    "train.py --sort-key attention_weights_mean --key /etc/ssl/private/a-long-name-1.pem --pass 3 --bypass yes",
    "PWD=/home/ann/a-long-folder-name-1 http_proxy=proxy:3128 --cache-key=none --auth-type=plain compass=north",
    "Unknown error: unhandled system error, NCCL version 2.27.7+cuda12.8",
)
"""Looks like a secret and is none."""
